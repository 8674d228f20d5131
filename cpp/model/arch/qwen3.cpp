// Qwen3. Yang et al. 2025, arXiv:2505.09388: LLaMA with every head of q and k normalised before it
// is rotated, and rotary pairs half a head apart.
//
//   x += Wo . attend(rope(n(Wq . n(x))), rope(n(Wk . n(x))), Wv . n(x))     n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                          SwiGLU
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Qwen3 final : public RotaryDecoder {
public:
    Qwen3(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false, QkNorm::by_head) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_feed_forward(LayerWeights(w, i), info().width, n_ffn));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::silu);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen3(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen3>(hparams, weights);
}

}  // namespace plait
