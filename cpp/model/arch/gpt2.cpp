// GPT-2. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": positions are
// learned vectors, as many as the model was trained with.
//
//   x  = E[token] + P[position]
//   x += Wo . attend(Wq . n(x) + bq, Wk . n(x) + bk, Wv . n(x) + bv) + bo       n = LayerNorm
//   x += Wdown . gelu(Wup . n(x) + bup) + bdown
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

ModelInfo gpt2_info(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_positions = hp.count("context_length", INT32_MAX);
    return info;
}

class Gpt2 final : public Decoder {
public:
    Gpt2(const Hparams& hp, const Weights& w)
        : Decoder(gpt2_info(hp, w), w, Norm::layer(hp)),
          positions_(w.get("position_embd.weight", {info().n_positions, info().width})),
          heads_(read_heads(hp, info().width)),
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
        return MemorySpecs(layers_.size(), {attention_spec(heads_)});
    }

protected:
    Value embed(Step& step) const override {
        return Decoder::embed(step) + plait::embed(step.weight(positions_), step.positions());
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
    Weight positions_;  // [n_positions, width]
    Heads heads_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Gpt2>(hparams, weights);
}

}  // namespace plait
