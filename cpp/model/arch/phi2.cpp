// Phi-2. Li et al. 2023, arXiv:2309.05463: rotary positions on a part of each head, attention and
// feed-forward side by side, biases everywhere.
//
//   h  = n(x)                                                              n = LayerNorm
//   x += Wo . attend(rope(Wq h + bq), rope(Wk h + bk), Wv h + bv) + bo
//      + Wdown . gelu(Wup h + bup) + bdown
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
};

class Phi2 final : public Decoder {
public:
    Phi2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_norm(l, "attn_norm", width), read_attention(l, width, heads_),
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
        const Value h = step.name(normalize(step, x, w.norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        x = x + project_out(step, i, y, w.attn);
        return x + feed_forward(step, i, h, w.ffn, Activation::gelu_tanh);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_phi2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Phi2>(hparams, weights);
}

}  // namespace plait
