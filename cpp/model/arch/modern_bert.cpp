// ModernBERT. Warner et al. 2024, arXiv:2412.13663: norms before blocks, rotary positions, gates;
// two layers of three see a window around each token and rotate with a base of their own.
//
//   x  = n(E[token])                                             n = LayerNorm without bias
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))    first layer: x, not n(x)
//   x += Wdown . (gelu(Wgate . n(x)) * Wup . n(x))
//   n(x) at last
#include "base/error.h"
#include "base/text.h"
#include "model/blocks/feed_forward.h"
#include "model/encoder.h"

namespace plait {
namespace {

constexpr int kPattern = 3;               // layers from one that sees everything to the next
constexpr float kWindowRopeBase = 10000;  // where the file says nothing

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    Window window;
    Rope rope;
};

Activation read_activation(const Hparams& hp) {
    const std::string name = hp.string("hidden_activation", "gelu");
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
    if (name == "silu" || name == "swish") return Activation::silu;
    if (name == "relu") return Activation::relu;
    throw UnsupportedError(text(hp.key("hidden_activation"), ": unknown activation \"", name,
                                "\"; known are gelu, gelu_pytorch_tanh, silu, relu"));
}

class ModernBert final : public Encoder {
public:
    ModernBert(const Hparams& hp, const Weights& w)
        : Encoder(modern_info(hp, w), hp, w, Activation::gelu),
          heads_(read_heads(hp, info().width)),
          activation_(read_activation(hp)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        output_norm_ = read_norm(w, "output_norm", width);
        const auto windows = read_windows(hp, info().n_layers, kPattern, 0, FullLayer::first);
        const Rope rope = read_rope(hp, heads_.head_dim, /*interleaved=*/false);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            if (i > 0 || l.has("attn_norm.weight"))
                layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_attention(l, width, heads_);
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            layer.ffn = read_feed_forward(l, width, n_ffn, FeedForward::gate_in_up);
            layer.window = windows[static_cast<size_t>(i)];
            layer.rope = rope;
            if (layer.window.kind == WindowKind::full) continue;
            layer.window.kind = WindowKind::symmetric;
            layer.rope.base = hp.positive("rope.freq_base_swa", kWindowRopeBase);
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_) specs.push_back({WithinSpec{.window = layer.window}});
        return specs;
    }

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = w.attn_norm.weight ? normalize(step, x, w.attn_norm) : x;
        const Qkv qkv = rotate(step, i, project_qkv(step, i, h, w.attn, heads_, norm_), w.rope);
        const Value y = attention_within(step, i, qkv, attention_);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + feed_forward(step, i, n, w.ffn, activation_);
    }

private:
    static ModelInfo modern_info(const Hparams& hp, const Weights& w) {
        ModelInfo info = encoder_info(hp, w);
        info.scored = Pooling::mean;
        return info;
    }

    Heads heads_;
    Activation activation_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_modern_bert(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<ModernBert>(hparams, weights);
}

}  // namespace plait
