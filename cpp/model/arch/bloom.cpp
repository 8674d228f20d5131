// BLOOM. BigScience 2022, arXiv:2211.05100: no position but a slope on distance, ALiBi
// (arXiv:2108.12409), and a norm of the embedding.
//
//   x  = n(E[token])                                                    n = LayerNorm
//   x += Wo . attend(Wq . n(x) + bq, Wk . n(x) + bk, Wv . n(x) + bv) + bo
//   x += Wdown . gelu(Wup . n(x) + bup) + bdown
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr float kMaxBias = 8.0f;  // where the file says nothing: the paper's

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
};

class Bloom final : public Decoder {
public:
    Bloom(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          attention_{.scale = attention_scale(hp, heads_.head_dim),
                     .alibi_max_bias = hp.positive("attention.max_alibi_bias", kMaxBias)},
          embedding_norm_(read_norm(w, "token_embd_norm", info().width)) {
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
        AttentionSpec spec = attention_spec(heads_);
        spec.needs_key_positions = true;
        return MemorySpecs(layers_.size(), {spec});
    }

protected:
    Value embed(Step& step) const override {
        return normalize(step, Decoder::embed(step), embedding_norm_);
    }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Value y =
            attention(step, i, project_qkv(step, i, h, w.attn, heads_, norm_), attention_);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + feed_forward(step, i, n, w.ffn, Activation::gelu_tanh);
    }

private:
    Heads heads_;
    Step::Attention attention_;
    NormWeights embedding_norm_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_bloom(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Bloom>(hparams, weights);
}

}  // namespace plait
