// A transformer with bidirectional attention, which stores nothing. Its last hidden states are
// pooled, and scored if the file has a scoring head.
#pragma once

#include "model/transformer.h"

namespace plait {

// The head of a classifier or reranker, which scores pooled rows:
// Wout n(act(Wcls h + bcls)) + bout. Either matrix and the norm are optional.
struct ScoreHead {
    Weight dense, dense_bias;  // [width, width], [width]
    NormWeights norm;          // [width]
    Weight out, out_bias;      // [n_scores, width], [n_scores]
    Activation how = Activation::tanh;
};

class Encoder : public Transformer {
public:
    // `head`: the activation of the scoring head.
    Encoder(const Hparams& hparams, const Weights& weights, ModelForm form,
            Activation head = Activation::tanh);

protected:
    void build_decoder(Step& step) const final;
    void build_scores(Step& step) const final;

private:
    ScoreHead head_;
};

ModelInfo read_encoder_info(const Hparams& hparams, const Weights& weights);
// The form of BERT and its successors: LayerNorm, a norm after the embedding, and the norms of a
// layer in the given order.
ModelForm encoder_form(ModelInfo info, const Hparams& hparams, RopePairs pairs,
                       const LayerNorms& norms);

}  // namespace plait
