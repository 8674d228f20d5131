// StableLM. Bellagente et al. 2024, arXiv:2402.17834: LLaMA with LayerNorm and rotary positions on a
// part of each head. StableLM 2 12B has a norm for each head of q and k, and no second norm: its
// feed-forward stands beside the attention.
//
//   h  = n1(x)                                                        n1, n2 = LayerNorm
//   x += Wo . attend(rope(nq(Wq h)), rope(nk(Wk h)), Wv h)
//   x += Wdown . (silu(Wgate g) * Wup g)                              g = n2(x); 12B: h
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

class StableLm final : public Decoder {
public:
    StableLm(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            const QkNorm qk = l.has("attn_q_norm.weight") ? QkNorm::each_head : QkNorm::none;
            layer.attn = read_attention(l, width, heads_, qk);
            if (l.has("ffn_norm.weight")) layer.ffn_norm = read_norm(l, "ffn_norm", width);
            layer.ffn = read_feed_forward(l, width, n_ffn);
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
        const Value g =
            w.ffn_norm.weight ? step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i) : h;
        return x + feed_forward(step, i, g, w.ffn, Activation::silu);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_stablelm(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<StableLm>(hparams, weights);
}

}  // namespace plait
