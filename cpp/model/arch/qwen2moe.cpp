// Qwen2-MoE (Qwen1.5-MoE). Yang et al. 2024, arXiv:2407.10671: Qwen2 with experts, and one of which
// every token takes as much as a gate says.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv)    n = RMSNorm
//   x += sum_e p_e f_e(n(x)) + sigmoid(w . n(x)) f_shared(n(x))     e: the largest of p;
//                                                        p = softmax(Wrouter . n(x))
//   f(n) = Wdown . (silu(Wgate . n) * Wup . n)
#include "model/blocks/experts.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

struct Layer {
    ExpertWeights experts;
    SharedExpertWeights shared;
};

class Qwen2Moe final : public RotaryDecoder {
public:
    Qwen2Moe(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false),
          counts_(read_expert_counts(hp, 1)) {
        const int width = info().width;
        const int n_ffn = read_expert_length(hp, counts_);
        const int n_shared = hp.index("expert_shared_feed_forward_length", Hparams::kMost, 0);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_experts(l, width, n_ffn, counts_),
                 read_shared_expert(l, width,
                                    n_shared > 0 ? n_shared : hp.count("feed_forward_length"))});
        }
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const RouteParams routing{counts_.n_used, /*renormalize=*/false, 1.0f};
        const Value chosen = experts(step, i, x, w.experts, routing, Activation::silu);
        return chosen + shared_expert(step, i, x, w.shared, Activation::silu);
    }

private:
    ExpertCounts counts_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen2moe(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen2Moe>(hparams, weights);
}

}  // namespace plait
