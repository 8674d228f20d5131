// OLMo 2. Walsh et al. 2024, arXiv:2501.00656: a block's input is not normalised, but what it adds
// is; all heads of q and of k are normalised at once. OLMo 3, arXiv:2512.13961, is of the same form:
// three layers with a window, whose positions are not scaled, then one that sees everything.
//
//   x += n(Wo . attend(rope(n(Wq . x)), rope(n(Wk . x)), Wv . x))     n = RMSNorm
//   x += n(Wdown . (silu(Wgate . x) * Wup . x))                       SwiGLU
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
};

class Olmo2 final : public Decoder {
public:
    Olmo2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          sliding_rope_(without_scaling(rope_)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        sliding_rope_.base = hp.positive("rope.freq_base_swa", static_cast<float>(rope_.base));
        const std::vector<Window> windows = read_windows(hp, info().n_layers, 4);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "post_attention_norm", width), read_norm(l, "post_ffw_norm", width),
                 read_attention(l, width, heads_, QkNorm::whole),
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
        const Qkv qkv = project_qkv(step, i, x, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope(i), {}, attention_);
        const Value a = normalize(step, project_out(step, i, y, w.attn), w.post_attn_norm);
        x = step.name(x + a, Role::ffn_inp, i);
        const Value f = feed_forward(step, i, x, w.ffn, Activation::silu);
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

std::unique_ptr<Model> make_olmo2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Olmo2>(hparams, weights);
}

}  // namespace plait
