// gpt-oss. OpenAI 2025, arXiv:2508.10925: every other layer sees a window; each head has a sink, a
// logit that joins its softmax and takes weight away from all keys (arXiv:2309.17453); experts with
// biases and a gate of their own. MXFP4 experts are weights like any others.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv, sinks) + bo
//   x += sum_e p_e (Wdown_e . swiglu(Wgate_e . n(x) + bg, Wup_e . n(x) + bu) + bd)     n = RMSNorm
//                               e: the largest of Wrouter . n(x) + br; p: their softmax
//   swiglu(g, u) = g sigmoid(1.702 g) (u + 1), g at most 7, u within -7 .. 7
#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr float kAlpha = 1.702f;
constexpr float kLimit = 7.0f;

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    Weight sinks;  // [h]
    ExpertWeights experts;
};

class GptOss final : public Decoder {
public:
    GptOss(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          counts_(read_expert_counts(hp, 1)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          windows_(read_windows(hp, info().n_layers, /*pattern=*/2)),
          scale_(attention_scale(hp, heads_.head_dim)) {
        const int width = info().width;
        const int n_ffn = read_expert_length(hp, counts_);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_attention(l, width, heads_);
            layer.sinks = l.get("attn_sinks.weight", {heads_.n_heads});
            layer.ffn_norm = read_norm(l, "post_attention_norm", width);
            layer.experts = read_experts(l, width, n_ffn, counts_);
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Window& window : windows_)
            specs.push_back({attention_spec(heads_, rope_, window)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Step::Attention how{.scale = scale_, .sinks = w.sinks};
        const Value y = rotary_attention(step, i, qkv, rope_, {}, how);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        const RouteParams routing{.n_used = counts_.n_used,
                                  .renormalize = false,
                                  .scale = 1.0f,
                                  .gating = Gating::softmax_chosen};
        return x + clamped_experts(step, i, n, w.experts, routing, kAlpha, kLimit);
    }

private:
    Heads heads_;
    ExpertCounts counts_;
    Rope rope_;
    std::vector<Window> windows_;
    float scale_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<GptOss>(hparams, weights);
}

}  // namespace plait
