// OLMoE. Muennighoff et al. 2024, arXiv:2409.02060: queries and keys are normalised over all heads
// at once; many small experts, whose weights need not sum to one.
//
//   x += Wo . attend(rope(n_q(Wq . n(x))), rope(n_k(Wk . n(x))), Wv . n(x))       n = RMSNorm
//   x += sum_e p_e Wdown_e . (silu(Wgate_e . n(x)) * Wup_e . n(x))     e: the largest of p;
//                                                        p = softmax(Wrouter . n(x))
#include "model/blocks/experts.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Olmoe final : public RotaryDecoder {
public:
    Olmoe(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/false, QkNorm::whole),
          counts_(read_expert_counts(hp, 1)) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_experts(LayerWeights(w, i), info().width, n_ffn, counts_));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        const RouteParams routing{counts_.n_used, /*renormalize=*/false, 1.0f};
        return experts(step, i, x, layers_[static_cast<size_t>(i)], routing, Activation::silu);
    }

private:
    ExpertCounts counts_;
    std::vector<ExpertWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_olmoe(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Olmoe>(hparams, weights);
}

}  // namespace plait
