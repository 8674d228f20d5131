// A transformer that predicts the next token: after the last layer a norm and the product with the
// output matrix.
#pragma once

#include "model/transformer.h"

namespace plait {

class Decoder : public Transformer {
public:
    // Reads the weights that the form implies. Without output.weight, the output matrix is that of
    // the embedding.
    Decoder(const Hparams& hparams, const Weights& weights, ModelForm form);

protected:
    void build_decoder(Step& step) const override;

private:
    Weight output_, output_bias_;  // [vocab, width], [vocab]
};

}  // namespace plait
