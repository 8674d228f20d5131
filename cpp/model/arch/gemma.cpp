// Gemma. Gemma Team 2024, arXiv:2403.08295: embeddings are multiplied by the root of the width, and
// the gate is a GELU. Files keep the weights of norms with the one added that the original adds.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += Wdown . (gelu(Wgate . n(x)) * Wup . n(x))                     GeGLU
#include <cmath>

#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Gemma final : public RotaryDecoder {
public:
    Gemma(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false) {
        embedding_scale_ = std::sqrt(static_cast<float>(info().width));
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_feed_forward(LayerWeights(w, i), info().width, n_ffn));
    }

protected:
    Value embed(Step& step) const override { return embed_scaled(step); }

    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::gelu_tanh);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_gemma(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Gemma>(hparams, weights);
}

}  // namespace plait
