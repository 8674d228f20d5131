// Gemma 2. Gemma Team 2024, arXiv:2408.00118: what a block adds is normalised once more, scores and
// logits are soft-capped, and every other layer sees a window only.
//
//   x += n(Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x)))      n = RMSNorm
//   x += n(Wdown . (gelu(Wgate . n(x)) * Wup . n(x)))                     GeGLU
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

class Gemma2 final : public Decoder {
public:
    Gemma2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          sliding_rope_(rope_) {
        constexpr int kLayersOf27B = 46;  // its scale is of width / heads, which no key says
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        const int scale_dim =
            info().n_layers == kLayersOf27B ? width / heads_.n_heads : heads_.head_dim;
        attention_ = {.scale = attention_scale(hp, scale_dim),
                      .softcap = hp.positive("attn_logit_softcapping", 50.0f)};
        sliding_rope_.base = hp.positive("rope.freq_base_swa", static_cast<float>(rope_.base));
        embedding_scale_ = std::sqrt(static_cast<float>(width));
        logit_softcap_ = hp.positive("final_logit_softcapping", 30.0f);
        const std::vector<Window> windows = read_windows(hp, info().n_layers, 2, 4096);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "attn_norm", width), read_norm(l, "post_attention_norm", width),
                 read_norm(l, "ffn_norm", width), read_norm(l, "post_ffw_norm", width),
                 read_attention(l, width, heads_), read_feed_forward(l, width, n_ffn),
                 windows[static_cast<size_t>(i)]});
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

    Value embed(Step& step) const override { return embed_scaled(step); }

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

std::unique_ptr<Model> make_gemma2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Gemma2>(hparams, weights);
}

}  // namespace plait
