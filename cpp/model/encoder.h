// A model whose tokens see all of their sequence, before and after them, and that remembers nothing:
// what these begin and end with. An architecture says what a layer does.
#pragma once

#include "model/blocks/attention.h"
#include "model/blocks/norm.h"
#include "model/blocks/score_head.h"
#include "model/model.h"
#include "model/step.h"

namespace plait {

class Encoder : public Model {
protected:
    static ModelInfo encoder_info(const Hparams& hparams, const Weights& weights);

    // Reads token_embd, its norm, token_types where there are any, position_embd where
    // info.n_positions says so, and the head that scores where the file has one.
    Encoder(ModelInfo info, const Hparams& hparams, const Weights& weights,
            Activation head = Activation::tanh);

    // x after layer i.
    virtual Value layer(Step& step, int i, Value x) const = 0;
    // n(E[token] + T[0] + P[position]): all tokens are of the first type, "sentence A".
    Value embed(Step& step) const;
    void build_decoder(Step& step) const final;
    void build_scores(Step& step) const final;

    Value normalize(Step& step, Value x, const NormWeights& w) const {
        return plait::normalize(step, x, w, norm_);
    }

    Norm norm_;
    Weight embedding_, types_, positions_;  // [vocab | types | n_positions, width]
    NormWeights embedding_norm_;            // [width]
    NormWeights output_norm_;               // [width], of what the last layer gives; optional
    ScoreHead head_;
};

}  // namespace plait
