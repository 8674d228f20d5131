// Phi-3. Abdin et al. 2024, arXiv:2404.14219: LLaMA with one matrix for q, k and v, and one for gate
// and up. LongRoPE, arXiv:2402.13753: a context longer than the original one divides the frequencies
// of rotary pairs by other factors than a short one.
//
//   x += Wo . attend(rope(q), rope(k), v),  [q, k, v] = Wqkv . n(x)      n = RMSNorm
//   x += Wdown . (silu(g) * u),  [g, u] = Wup . n(x)                     SwiGLU
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    Window window;
};

class Phi3 final : public Decoder {
public:
    Phi3(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        if (w.has("rope_factors_long.weight") || w.has("rope_factors_short.weight")) {
            long_factors_ = w.get("rope_factors_long.weight", {rope_.n_rot / 2});
            short_factors_ = w.get("rope_factors_short.weight", {rope_.n_rot / 2});
        }
        const std::vector<Window> windows = read_windows(hp, info().n_layers, 0);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_norm(l, "attn_norm", width), read_norm(l, "ffn_norm", width),
                               read_attention(l, width, heads_),
                               read_feed_forward(l, width, n_ffn, FeedForward::gate_in_up),
                               windows[static_cast<size_t>(i)]});
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& w : layers_) specs.push_back({attention_spec(heads_, rope_, w.window)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions& options) const override {
        return {rope_, factors(options.n_ctx)};
    }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, factors(step.n_ctx()), attention_);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + feed_forward(step, i, n, w.ffn, Activation::silu);
    }

private:
    const Weight& factors(int64_t n_ctx) const {
        return n_ctx > rope_.n_ctx_original ? long_factors_ : short_factors_;
    }

    Heads heads_;
    Rope rope_;
    Weight long_factors_, short_factors_;  // [n_rot / 2]
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_phi3(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Phi3>(hparams, weights);
}

}  // namespace plait
