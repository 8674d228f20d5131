// Qwen3-MoE. Yang et al. 2025, arXiv:2505.09388: Qwen3, whose heads' queries and keys are
// normalised, with experts in place of the feed-forward block.
//
//   x += Wo . attend(rope(n_h(Wq . n(x))), rope(n_h(Wk . n(x))), Wv . n(x))       n = RMSNorm
//   x += sum_e p_e Wdown_e . (silu(Wgate_e . n(x)) * Wup_e . n(x))     e: the largest of p;
//                                   p = softmax(Wrouter . n(x)), those chosen summing to one
#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    ExpertWeights experts;
};

class Qwen3Moe final : public Decoder {
public:
    Qwen3Moe(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          counts_(read_expert_counts(hp, 1)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = read_expert_length(hp, counts_);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_attention(l, width, heads_, QkNorm::by_head);
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            layer.experts = read_experts(l, width, n_ffn, counts_);
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        const RouteOp routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        return x + experts(step, i, n, w.experts, routing, Activation::silu);
    }

private:
    Heads heads_;
    ExpertCounts counts_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen3moe(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen3Moe>(hparams, weights);
}

}  // namespace plait
