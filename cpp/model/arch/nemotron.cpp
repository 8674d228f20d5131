// Nemotron and Minitron. Parmar et al. 2024, arXiv:2402.16819: rotary positions on a part of each
// head, a squared ReLU and no gate. The norms' weights count from one; files have them whole.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))          n = LayerNorm
//   x += Wdown . relu(Wup . n(x))^2
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
};

class Nemotron final : public Decoder {
public:
    Nemotron(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_norm(l, "attn_norm", width), read_norm(l, "ffn_norm", width),
                               read_attention(l, width, heads_),
                               read_feed_forward(l, width, n_ffn, FeedForward::plain)});
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
        return x + feed_forward(step, i, n, w.ffn, Activation::relu_squared);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_nemotron(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Nemotron>(hparams, weights);
}

}  // namespace plait
