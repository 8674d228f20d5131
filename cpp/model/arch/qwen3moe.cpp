// Qwen3-MoE. Yang et al. 2025, arXiv:2505.09388: Qwen3, whose heads' queries and keys are
// normalised, with experts in place of the feed-forward block.
//
//   x += Wo . attend(rope(n_h(Wq . n(x))), rope(n_h(Wk . n(x))), Wv . n(x))       n = RMSNorm
//   x += sum_e p_e Wdown_e . (silu(Wgate_e . n(x)) * Wup_e . n(x))     e: the largest of p;
//                                   p = softmax(Wrouter . n(x)), those chosen summing to one
#include "model/blocks/experts.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Qwen3Moe final : public RotaryDecoder {
public:
    Qwen3Moe(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false, QkNorm::by_head),
          counts_(read_expert_counts(hp, 1)) {
        const int n_ffn = read_expert_length(hp, counts_);
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_experts(LayerWeights(w, i), info().width, n_ffn, counts_));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        const RouteParams routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        return experts(step, i, x, layers_[static_cast<size_t>(i)], routing, Activation::silu);
    }

private:
    ExpertCounts counts_;
    std::vector<ExpertWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen3moe(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen3Moe>(hparams, weights);
}

}  // namespace plait
