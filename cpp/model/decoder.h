// A model of layers on one residual stream: what all of these begin and end with. An architecture
// says what a layer does.
#pragma once

#include "model/blocks/norm.h"
#include "model/model.h"
#include "model/step.h"

namespace plait {

class Decoder : public Model {
protected:
    // Reads token_embd, output_norm and output ("output" absent: tied to the embedding).
    Decoder(const Hparams& hparams, const Weights& weights, const Norm& norm,
            std::string_view output_norm = "output_norm");
    Decoder(ModelInfo info, const Weights& weights, const Norm& norm,
            std::string_view output_norm = "output_norm");

    // x after layer i. Every row is computed; rows nobody asks for are left out when the graph is
    // compiled.
    virtual Value layer(Step& step, int i, Value x) const;
    // x after all layers, one after the other; for models whose layers share more than x.
    virtual Value layers(Step& step, Value x) const;
    // What goes into the first layer: the embedding of tokens times embedding_scale_.
    virtual Value embed(Step& step) const;
    // For models that multiply embeddings given in place of tokens as well.
    Value embed_scaled(Step& step) const;
    void build_decoder(Step& step) const override;

    Value normalize(Step& step, Value x, const NormWeights& w) const {
        return plait::normalize(step, x, w, norm_);
    }

    Norm norm_;
    Weight embedding_;             // [vocab, width]
    NormWeights output_norm_;      // [width]
    Weight output_, output_bias_;  // [vocab, width], [vocab]
    float embedding_scale_ = 1.0f;
    float logit_scale_ = 1.0f;
    float logit_softcap_ = 0.0f;  // 0: none
};

}  // namespace plait
