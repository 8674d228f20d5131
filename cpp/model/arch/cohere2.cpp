// Command R7B. Cohere 2025, arXiv:2504.00698: three layers of four see a window and rotate, the
// fourth sees everything and knows no position; attention and feed-forward side by side.
//
//   h  = n(x)                                                     n = LayerNorm without bias
//   x += Wo . attend(rope(Wq h), rope(Wk h), Wv h) + Wdown . (silu(Wgate h) * Wup h)
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr int kPattern = 4;  // layers from one that sees everything to the next

struct Layer {
    NormWeights norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    Window window;
    bool rotates() const { return window.kind != WindowKind::full; }
};

class Cohere2 final : public Decoder {
public:
    Cohere2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        logit_scale_ = hp.positive("logit_scale");
        hp.count("attention.sliding_window", INT32_MAX);  // must be there
        const std::vector<Window> windows = read_windows(hp, info().n_layers, kPattern);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_norm(l, "attn_norm", width), read_attention(l, width, heads_),
                               read_feed_forward(l, width, n_ffn),
                               windows[static_cast<size_t>(i)]});
        }
    }

    // A shift of positions turns the keys of every layer, also of those that know no position:
    // llama.cpp's, which the reference logits follow.
    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_)
            specs.push_back({attention_spec(heads_, rope_, layer.window)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.norm), Role::attn_norm, i);
        Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        if (w.rotates()) qkv = rotate(step, i, qkv, rope_);
        const Value y = attention(step, i, qkv, attention_);
        x = x + project_out(step, i, y, w.attn);
        return x + feed_forward(step, i, h, w.ffn, Activation::silu);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_cohere2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Cohere2>(hparams, weights);
}

}  // namespace plait
