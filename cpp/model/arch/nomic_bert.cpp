// Nomic Embed. Nussbaum et al. 2024, arXiv:2402.01613: BERT with rotary positions and gates.
//
//   x = n(E[token] + T[0])                                       n = LayerNorm
//   x = n(x + Wo . attend(rope(Wq x), rope(Wk x), Wv x))
//   x = n(x + Wdown . (silu(Wgate x) * Wup x))
#include "model/blocks/feed_forward.h"
#include "model/encoder.h"

namespace plait {
namespace {

struct Layer {
    AttentionWeights attn;
    FeedForwardWeights ffn;
    NormWeights attn_norm, ffn_norm;  // of the sums
};

class NomicBert final : public Encoder {
public:
    NomicBert(const Hparams& hp, const Weights& w)
        : Encoder(encoder_info(hp, w), hp, w),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_attention(l, width, heads_), read_feed_forward(l, width, n_ffn),
                               read_norm(l, "attn_output_norm", width),
                               read_norm(l, "layer_output_norm", width)});
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {WithinSpec{}});
    }

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Qkv qkv = rotate(step, i, project_qkv(step, i, x, w.attn, heads_, norm_), rope_);
        const Value y = attention_within(step, i, qkv, attention_);
        x = step.name(normalize(step, x + project_out(step, i, y, w.attn), w.attn_norm),
                      Role::ffn_inp, i);
        return normalize(step, x + feed_forward(step, i, x, w.ffn, Activation::silu), w.ffn_norm);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_nomic_bert(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<NomicBert>(hparams, weights);
}

}  // namespace plait
