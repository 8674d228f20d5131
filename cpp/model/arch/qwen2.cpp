// Qwen2. Yang et al. 2024, arXiv:2407.10671: LLaMA with biases on q, k and v, and rotary pairs half
// a head apart.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv)    n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                                   SwiGLU
#include <cmath>

#include "model/blocks.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/step.h"

namespace plait {
namespace {

struct Layer {
    Weight attn_norm;  // [width]
    AttentionWeights attn;
    Weight ffn_norm;   // [width]
    FeedForwardWeights ffn;
};

class Qwen2 final : public Model {
public:
    Qwen2(const Hparams& hp, const Weights& w);
    MemorySpecs memory_specs() const override;

protected:
    void build_decoder(Step& step) const override;
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

private:
    Heads heads_;
    float epsilon_;
    Rope rope_;
    Weight embedding_;    // [vocab, width]
    Weight output_norm_;  // [width]
    Weight output_;       // [vocab, width]; the embedding when tied
    std::vector<Layer> layers_;
};

Qwen2::Qwen2(const Hparams& hp, const Weights& w)
    : Model(read_info(hp, w)),
      heads_(read_heads(hp, info().width)),
      epsilon_(hp.positive("attention.layer_norm_rms_epsilon")),
      rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
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
        layer.ffn = read_feed_forward(l, width, n_ffn);
    }
}

MemorySpecs Qwen2::memory_specs() const {
    return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
}

void Qwen2::build_decoder(Step& step) const {
    const Step::Attention how{.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim))};
    Value x = step.embed(embedding_);
    const Value table = step.rope_table(rope_);
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
        const Value n = step.name(rms_norm(x, step.weight(w.ffn_norm), epsilon_), Role::ffn_norm, i);
        y = gated_feed_forward(step, i, n, w.ffn, Activation::silu);
        x = step.name(x + y, Role::l_out, i);
    }
    x = rms_norm(x, step.weight(output_norm_), epsilon_);
    step.emit_hidden(x);
    if (step.wants_logits()) step.emit_logits(linear(x, step.weight(output_)));
}

}  // namespace

std::unique_ptr<Model> make_qwen2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen2>(hparams, weights);
}

}  // namespace plait
