// LLaMA. Touvron et al. 2023, arXiv:2302.13971; grouped-query attention: arXiv:2305.13245;
// experts as in Mixtral: Jiang et al. 2024, arXiv:2401.04088.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                     SwiGLU, or experts of it
#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
    ExpertWeights experts;  // in place of ffn where the model has them
};

class Llama final : public Decoder {
public:
    Llama(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          counts_(read_expert_counts(hp)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
          rope_factors_(read_rope_factors(w, rope_)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_attention(l, width, heads_);
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            if (counts_.n_experts > 0)
                layer.experts = read_experts(l, width, n_ffn, counts_);
            else
                layer.ffn = read_feed_forward(l, width, n_ffn);
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {rope_, rope_factors_};
    }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, rope_factors_, attention_);
        x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        if (counts_.n_experts == 0)
            return x + feed_forward(step, i, n, w.ffn, Activation::silu);
        const RouteOp routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        return x + experts(step, i, n, w.experts, routing, Activation::silu);
    }

private:
    Heads heads_;
    ExpertCounts counts_;
    Rope rope_;
    Weight rope_factors_;  // [n_rot / 2], of llama-3 scaling
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Llama>(hparams, weights);
}

}  // namespace plait
