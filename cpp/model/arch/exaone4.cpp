// EXAONE 4. LG AI Research 2025, arXiv:2507.11407: a block's input is not normalised, but what it
// adds is, and so are heads of q and k. The large one has three layers with a window, then one that
// sees everything and knows no positions; the small one rotates everywhere.
//
//   x += n(Wo . attend(rope(n(Wq . x)), rope(n(Wk . x)), Wv . x))     n = RMSNorm
//   x += n(Wdown . (silu(Wgate . x) * Wup . x))                       SwiGLU
#include <algorithm>

#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights post_attn_norm, post_ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    Window window;
    bool rotates;
};

class Exaone4 final : public Decoder {
public:
    Exaone4(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          rope_factors_(read_rope_factors(w, rope_)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        constexpr int kLayersOf32B = 64;  // whose first files do not say that it has windows
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        const int tokens = info().n_layers == kLayersOf32B ? 4096 : 0;
        const std::vector<Window> windows = read_windows(hp, info().n_layers, 4, tokens);
        const bool mixed = std::ranges::any_of(
            windows, [](const Window& window) { return window.kind == WindowKind::sliding; });
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            const Window window = windows[static_cast<size_t>(i)];
            layers_.push_back({read_norm(l, "post_attention_norm", width),
                               read_norm(l, "post_ffw_norm", width),
                               read_attention(l, width, heads_, QkNorm::by_head),
                               read_feed_forward(l, width, n_ffn), window,
                               !mixed || window.kind == WindowKind::sliding});
        }
    }

    // A shift turns the keys of every layer, also of those that know no positions: llama.cpp's does,
    // which reference logits follow. docs/decisions/0005
    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& w : layers_) specs.push_back({attention_spec(heads_, rope_, w.window)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {rope_, rope_factors_};
    }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Qkv qkv = project_qkv(step, i, x, w.attn, heads_, norm_);
        const Value y = w.rotates ? rotary_attention(step, i, qkv, rope_, rope_factors_, attention_)
                                  : attention(step, i, qkv, attention_);
        const Value a = normalize(step, project_out(step, i, y, w.attn), w.post_attn_norm);
        x = step.name(x + a, Role::ffn_inp, i);
        const Value f = feed_forward(step, i, x, w.ffn, Activation::silu);
        return x + normalize(step, f, w.post_ffn_norm);
    }

private:
    Heads heads_;
    Rope rope_;
    Weight rope_factors_;  // [n_rot / 2], of llama-3 scaling
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_exaone4(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Exaone4>(hparams, weights);
}

}  // namespace plait
