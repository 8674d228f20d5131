// BERT. Devlin et al. 2018, arXiv:1810.04805: tokens see all of their sequence; norms after each sum.
//
//   x = n(E[token] + T[0] + P[position])                         n = LayerNorm
//   x = n(x + Wo . attend(Wq x + bq, Wk x + bk, Wv x + bv) + bo)
//   x = n(x + Wdown . gelu(Wup x + bup) + bdown)
#include "model/blocks/feed_forward.h"
#include "model/encoder.h"

namespace plait {
namespace {

struct Layer {
    AttentionWeights attn;
    FeedForwardWeights ffn;
    NormWeights attn_norm, ffn_norm;  // of the sums
};

class Bert final : public Encoder {
public:
    Bert(const Hparams& hp, const Weights& w)
        : Encoder(bert_info(hp, w), hp, w),
          heads_(read_heads(hp, info().width)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_attention(l, width, heads_),
                               read_feed_forward(l, width, n_ffn, FeedForward::plain),
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
        const Qkv qkv = project_qkv(step, i, x, w.attn, heads_, norm_);
        const Value y = attention_within(step, i, qkv, attention_);
        x = step.name(normalize(step, x + project_out(step, i, y, w.attn), w.attn_norm),
                      Role::ffn_inp, i);
        return normalize(step, x + feed_forward(step, i, x, w.ffn, Activation::gelu), w.ffn_norm);
    }

private:
    static ModelInfo bert_info(const Hparams& hp, const Weights& w) {
        ModelInfo info = encoder_info(hp, w);
        info.n_positions = hp.count("context_length", INT32_MAX);
        return info;
    }

    Heads heads_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_bert(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Bert>(hparams, weights);
}

}  // namespace plait
