// LFM2. Liquid AI 2025, arXiv:2511.23404: most layers mix tokens by a short gated convolution,
// others by attention; no state but the convolution's last inputs.
//
//   b, c, u = Win . n(x);  x += Wout . (c * conv(b * u))                         n = RMSNorm
//   or  x += Wo . attend(rope(n_h(Wq . n(x))), rope(n_h(Wk . n(x))), Wv . n(x))
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))
#include "base/text.h"
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights mixer_norm, ffn_norm;
    Heads heads;  // without any: a convolution
    AttentionWeights attn;
    Weight in, conv, out;  // [3 width, width], [width, taps], [width, width]
    FeedForwardWeights ffn;
};

Window read_window(const Hparams& hp) {
    const int tokens = hp.index("attention.sliding_window", INT32_MAX, 0);
    return tokens > 0 ? Window{WindowKind::sliding, tokens} : Window{};
}

class Lfm2 final : public Decoder {
public:
    Lfm2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp), "token_embd_norm"),
          taps_(hp.count("shortconv.l_cache")),
          window_(read_window(hp)) {
        const int width = info().width;
        if (taps_ < 2) hp.refuse("shortconv.l_cache", text("expected 2 or more, got ", taps_));
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.mixer_norm = read_norm(l, "attn_norm", width);
            layer.heads = read_heads(hp, width, i);
            if (layer.heads.n_kv_heads > 0) {
                rope_ = read_rope(hp, layer.heads.head_dim, /*interleaved=*/false);
                attention_.scale = attention_scale(hp, layer.heads.head_dim);
                layer.attn = read_attention(l, width, layer.heads, QkNorm::by_head);
            } else {
                layer.in = l.get("shortconv.in_proj.weight", {int64_t{3} * width, width});
                layer.conv = l.get("shortconv.conv.weight", {width, taps_});
                layer.out = l.get("shortconv.out_proj.weight", {width, width});
            }
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            layer.ffn = read_feed_forward(l, width, hp.count("feed_forward_length"));
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_)
            if (layer.heads.n_kv_heads > 0)
                specs.push_back({attention_spec(layer.heads, rope_, window_)});
            else
                specs.push_back({RecurrentSpec{.elements = {(taps_ - 1) * int64_t{info().width}}}});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.mixer_norm), Role::attn_norm, i);
        const Value y = w.heads.n_kv_heads > 0 ? attend(step, i, h, w) : convolve(step, i, h, w);
        x = step.name(x + y, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + feed_forward(step, i, n, w.ffn, Activation::silu);
    }

private:
    Value attend(Step& step, int i, Value h, const Layer& w) const {
        const Qkv qkv = project_qkv(step, i, h, w.attn, w.heads, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        return project_out(step, i, y, w.attn);
    }

    Value convolve(Step& step, int i, Value h, const Layer& w) const {
        const int64_t width = info().width;
        const Value bcu = linear(h, step.weight(w.in));
        const Value bu = slice(bcu, 0, width) * slice(bcu, 2 * width, width);
        const Value y = short_conv(bu, step.weight(w.conv), {}, step.states(i, 0, 0));
        const Value gated = slice(bcu, width, width) * step.name(y, Role::conv, i);
        return step.name(linear(gated, step.weight(w.out)), Role::mixer_out, i);
    }

    int taps_;
    Window window_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_lfm2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Lfm2>(hparams, weights);
}

}  // namespace plait
