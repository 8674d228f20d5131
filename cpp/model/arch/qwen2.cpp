// Qwen2. Yang et al. 2024, arXiv:2407.10671: LLaMA with biases on q, k and v, and rotary pairs half
// a head apart.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv)    n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                                   SwiGLU
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Qwen2 final : public RotaryDecoder {
public:
    Qwen2(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false) {
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

std::unique_ptr<Model> make_qwen2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen2>(hparams, weights);
}

}  // namespace plait
