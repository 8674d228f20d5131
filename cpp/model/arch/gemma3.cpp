// Gemma 3. Gemma Team 2025, arXiv:2503.19786: heads of q and k are normalised in place of a soft
// cap; five layers with a window, rotated with a base of their own, then one that sees everything
// and whose positions alone are scaled.
//
//   x += n(Wo . attend(rope(n(Wq . n(x))), rope(n(Wk . n(x))), Wv . n(x)))     n = RMSNorm
//   x += n(Wdown . (gelu(Wgate . n(x)) * Wup . n(x)))                          GeGLU
#include <cmath>

#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, post_attn_norm, ffn_norm, post_ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    Window window;
};

class Gemma3 final : public Decoder {
public:
    Gemma3(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          sliding_rope_(without_scaling(rope_)) {
        constexpr int kLayersOf27B = 62;  // its scale is of width / heads, which no key says
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        const int scale_dim =
            info().n_layers == kLayersOf27B ? width / heads_.n_heads : heads_.head_dim;
        attention_.scale = attention_scale(hp, scale_dim);
        sliding_rope_.base = hp.positive("rope.freq_base_swa", 10000.0f);
        embedding_scale_ = std::sqrt(static_cast<float>(width));
        if (hp.number("final_logit_softcapping", 0.0f) != 0.0f)
            logit_softcap_ = hp.positive("final_logit_softcapping");
        const std::vector<Window> windows = read_windows(hp, info().n_layers, 6);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "attn_norm", width), read_norm(l, "post_attention_norm", width),
                 read_norm(l, "ffn_norm", width), read_norm(l, "post_ffw_norm", width),
                 read_attention(l, width, heads_, QkNorm::by_head),
                 read_feed_forward(l, width, n_ffn), windows[static_cast<size_t>(i)]});
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (size_t i = 0; i < layers_.size(); ++i)
            specs.push_back({attention_spec(heads_, rope(static_cast<int>(i)), layers_[i].window)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int i, const BuildOptions&) const override { return {rope(i), {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope(i), {}, attention_);
        const Value a = normalize(step, project_out(step, i, y, w.attn), w.post_attn_norm);
        x = step.name(x + a, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        const Value f = feed_forward(step, i, n, w.ffn, Activation::gelu_tanh);
        return x + normalize(step, f, w.post_ffn_norm);
    }

private:
    const Rope& rope(int i) const {
        const bool full = layers_[static_cast<size_t>(i)].window.kind == WindowKind::full;
        return full ? rope_ : sliding_rope_;
    }

    Heads heads_;
    Rope rope_, sliding_rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_gemma3(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Gemma3>(hparams, weights);
}

}  // namespace plait
