// Granite 3. IBM 2024, https://github.com/ibm-granite/granite-3.0-language-models: LLaMA with
// multipliers of embeddings, scores, what blocks add, and logits (muP, arXiv:2203.03466).
//
//   x += r Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += r Wdown . (silu(Wgate . n(x)) * Wup . n(x))                     SwiGLU
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

class Granite final : public Decoder {
public:
    Granite(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
          rope_factors_(read_rope_factors(w, rope_)),
          rotates_(hp.flag("rope.scaling.finetuned", true)),  // Granite 4 says no by this key
          attention_{.scale = attention_scale(hp, heads_.head_dim)},
          residual_scale_(multiplier(hp, "residual_scale")) {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        embedding_scale_ = multiplier(hp, "embedding_scale");
        logit_scale_ = 1.0f / hp.positive("logit_scale");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back({read_norm(l, "attn_norm", width), read_norm(l, "ffn_norm", width),
                               read_attention(l, width, heads_),
                               read_feed_forward(l, width, n_ffn)});
        }
    }

    // A shift turns keys even where the model does not: see docs/decisions/0005.
    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {rope_, rope_factors_};
    }

    Value embed(Step& step) const override { return embed_scaled(step); }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotates_ ? rotary_attention(step, i, qkv, rope_, rope_factors_, attention_)
                                 : attention(step, i, qkv, attention_);
        x = step.name(x + damped(project_out(step, i, y, w.attn)), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + damped(feed_forward(step, i, n, w.ffn, Activation::silu));
    }

private:
    static float multiplier(const Hparams& hp, std::string_view key) {
        const float stated = hp.number(key, 0.0f);  // 0: none
        return stated == 0.0f ? 1.0f : stated;
    }
    Value damped(Value x) const { return residual_scale_ == 1.0f ? x : scale(x, residual_scale_); }

    Heads heads_;
    Rope rope_;
    Weight rope_factors_;  // [n_rot / 2]
    bool rotates_;
    Step::Attention attention_;
    float residual_scale_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_granite(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Granite>(hparams, weights);
}

}  // namespace plait
