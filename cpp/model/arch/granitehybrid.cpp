// Granite 4. IBM 2025, https://huggingface.co/ibm-granite/granite-4.0-h-small: Granite, whose
// embeddings, residuals, scores and logits have factors, with most layers of Mamba-2.
//
//   x += r Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))  or  r mamba2(n(x))
//   x += r f(n(x))       f: SwiGLU; or sum_e p_e f_e(n(x)) + f_shared(n(x))      n = RMSNorm
//
// Attention of models that were trained without positions (rope.scaling.finetuned) does not rotate.
#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights mixer_norm, ffn_norm;
    Heads heads;  // without any: a layer of Mamba-2
    AttentionWeights attn;
    Mamba2Weights mamba;
    FeedForwardWeights ffn;
    ExpertWeights experts;  // in place of ffn where the model has them
    SharedExpertWeights shared;
};

class GraniteHybrid final : public Decoder {
public:
    GraniteHybrid(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          counts_(read_expert_counts(hp)),
          sizes_(read_grouped_ssm_sizes(hp)),
          rotates_(hp.flag("rope.scaling.finetuned", true)),
          residual_scale_(hp.positive("residual_scale", 1.0f)) {
        embedding_scale_ = hp.positive("embedding_scale", 1.0f);
        logit_scale_ = 1.0f / hp.positive("logit_scale", 1.0f);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.mixer_norm = read_norm(l, "attn_norm", info().width);
            layer.heads = read_heads(hp, info().width, i);
            if (layer.heads.n_kv_heads > 0) {
                rope_ = read_rope(hp, layer.heads.head_dim, /*interleaved=*/true);
                attention_.scale = attention_scale(hp, layer.heads.head_dim);
                layer.attn = read_attention(l, info().width, layer.heads);
            } else {
                layer.mamba = read_mamba2(l, info().width, sizes_);
            }
            layer.ffn_norm = read_norm(l, "ffn_norm", info().width);
            read_blocks(hp, l, layer);
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_)
            if (layer.heads.n_kv_heads == 0)
                specs.push_back({mamba2_spec(sizes_)});
            else if (rotates_)
                specs.push_back({attention_spec(layer.heads, rope_)});
            else
                specs.push_back({attention_spec(layer.heads)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value embed(Step& step) const override { return embed_scaled(step); }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.mixer_norm), Role::attn_norm, i);
        const Value mixed = w.heads.n_kv_heads > 0 ? attend(step, i, h, w)
                                                   : mamba2(step, i, 0, h, w.mamba, sizes_, norm_);
        x = step.name(x + scale(mixed, residual_scale_), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + scale(blocks(step, i, n, w), residual_scale_);
    }

private:
    void read_blocks(const Hparams& hp, const LayerWeights& l, Layer& layer) const {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        const int n_shared = hp.index("expert_shared_feed_forward_length", Hparams::kMost, 0);
        if (counts_.n_experts == 0) {
            layer.ffn = read_feed_forward(l, width, n_ffn);
            return;
        }
        layer.experts = read_experts(l, width, n_ffn, counts_);
        if (n_shared > 0) layer.shared = read_shared_expert(l, width, n_shared);
    }

    Value attend(Step& step, int i, Value h, const Layer& w) const {
        const Qkv qkv = project_qkv(step, i, h, w.attn, w.heads, norm_);
        const Value y = rotates_ ? rotary_attention(step, i, qkv, rope_, {}, attention_)
                                 : attention(step, i, qkv, attention_);
        return project_out(step, i, y, w.attn);
    }

    Value blocks(Step& step, int i, Value n, const Layer& w) const {
        if (counts_.n_experts == 0) return feed_forward(step, i, n, w.ffn, Activation::silu);
        const RouteParams routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        const Value chosen = experts(step, i, n, w.experts, routing, Activation::silu);
        if (!w.shared.ffn.up) return chosen;
        return chosen + shared_expert(step, i, n, w.shared, Activation::silu);
    }

    ExpertCounts counts_;
    SsmSizes sizes_;
    bool rotates_;
    float residual_scale_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_granitehybrid(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<GraniteHybrid>(hparams, weights);
}

}  // namespace plait
