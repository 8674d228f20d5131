// LLaMA. Touvron et al. 2023, arXiv:2302.13971; grouped-query attention: arXiv:2305.13245;
// experts as in Mixtral: Jiang et al. 2024, arXiv:2401.04088.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                     SwiGLU, or experts of it
#include <cmath>

#include "model/blocks.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/step.h"

namespace plait {
namespace {

struct Layer {
    Weight attn_norm;       // [width]
    AttentionWeights attn;
    Weight ffn_norm;        // [width]
    FeedForwardWeights ffn;
    ExpertWeights experts;  // in place of ffn where the model has them
};

class Llama final : public Model {
public:
    Llama(const Hparams& hp, const Weights& w);
    MemorySpecs memory_specs() const override;

protected:
    void build_decoder(Step& step) const override;
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {rope_, rope_factors_};
    }

private:
    Value feed_forward(Step& step, int layer, Value x) const;

    Heads heads_;
    ExpertCounts experts_;
    float epsilon_;
    Rope rope_;
    Weight rope_factors_;  // [n_rot / 2], of llama-3 scaling
    Weight embedding_;     // [vocab, width]
    Weight output_norm_;   // [width]
    Weight output_;        // [vocab, width]; the embedding when tied
    std::vector<Layer> layers_;
};

Llama::Llama(const Hparams& hp, const Weights& w)
    : Model(read_info(hp, w)),
      heads_(read_heads(hp, info().width)),
      experts_(read_expert_counts(hp)),
      epsilon_(hp.positive("attention.layer_norm_rms_epsilon")),
      rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
      rope_factors_(read_rope_factors(w, rope_)),
      embedding_(w.get("token_embd.weight", {info().n_vocab, info().width})),
      output_norm_(w.get("output_norm.weight", {info().width})),
      output_(w.find("output.weight", {info().n_vocab, info().width})) {
    if (!output_) output_ = embedding_;
    const int width = info().width;
    const int n_ffn = hp.count("feed_forward_length");
    for (int i = 0; i < info().n_layers; ++i) {
        const LayerWeights l(w, i);
        Layer& layer = layers_.emplace_back();
        layer.attn_norm = l.get("attn_norm.weight", {width});
        layer.attn = read_attention(l, width, heads_);
        layer.ffn_norm = l.get("ffn_norm.weight", {width});
        if (experts_.n_experts > 0)
            layer.experts = read_experts(l, width, n_ffn, experts_);
        else
            layer.ffn = read_feed_forward(l, width, n_ffn);
    }
}

MemorySpecs Llama::memory_specs() const {
    return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
}

Value Llama::feed_forward(Step& step, int layer, Value x) const {
    const Layer& w = layers_[static_cast<size_t>(layer)];
    const Value h = step.name(rms_norm(x, step.weight(w.ffn_norm), epsilon_), Role::ffn_norm, layer);
    if (experts_.n_experts > 0) return gated_experts(step, layer, h, w.experts, Activation::silu);
    return gated_feed_forward(step, layer, h, w.ffn, Activation::silu);
}

void Llama::build_decoder(Step& step) const {
    const Step::Attention how{.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim))};
    Value x = step.embed(embedding_);
    const Value table = step.rope_table(rope_, rope_factors_);
    for (int i = 0; i < info().n_layers; ++i) {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(rms_norm(x, step.weight(w.attn_norm), epsilon_), Role::attn_norm, i);
        Value y = rotary_attention(step, i, h, w.attn, heads_, rope_, table, how);
        if (i + 1 == info().n_layers) {
            y = step.keep_outputs(y);
            x = step.keep_outputs(x);
        }
        y = step.name(linear(y, step.weight(w.attn.wo), step.weight(w.attn.bo)), Role::attn_out, i);
        x = step.name(x + y, Role::ffn_inp, i);
        x = step.name(x + feed_forward(step, i, x), Role::l_out, i);
    }
    x = rms_norm(x, step.weight(output_norm_), epsilon_);
    step.emit_hidden(x);
    if (step.wants_logits()) step.emit_logits(linear(x, step.weight(output_)));
}

}  // namespace

std::unique_ptr<Model> make_llama(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Llama>(hparams, weights);
}

}  // namespace plait
