// LLaMA. Touvron et al. 2023, arXiv:2302.13971; grouped-query attention: arXiv:2305.13245;
// experts as in Mixtral: Jiang et al. 2024, arXiv:2401.04088.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                     SwiGLU, or experts of it
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

struct Layer {
    FeedForwardWeights ffn;
    ExpertWeights experts;  // in place of ffn where the model has them
};

class Llama final : public RotaryDecoder {
public:
    Llama(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/true),
          counts_(read_expert_counts(hp)) {
        rope_factors_ = read_rope_factors(w, rope_);
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            if (counts_.n_experts > 0)
                layer.experts = read_experts(l, width, n_ffn, counts_);
            else
                layer.ffn = read_feed_forward(l, width, n_ffn);
        }
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        if (counts_.n_experts == 0) return feed_forward(step, i, x, w.ffn, Activation::silu);
        const RouteParams routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        return experts(step, i, x, w.experts, routing, Activation::silu);
    }

private:
    ExpertCounts counts_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Llama>(hparams, weights);
}

}  // namespace plait
