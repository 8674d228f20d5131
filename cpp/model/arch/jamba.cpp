// Jamba. Lieber et al. 2024, arXiv:2403.19887: layers of Mamba, among them some of attention, which
// needs no positions; feed-forward blocks, some of them of experts.
//
//   x += attend(Wq . n(x), Wk . n(x), Wv . n(x))  or  mamba(n(x))             n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                 SwiGLU, or experts of it
#include <cmath>

#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights mixer_norm, ffn_norm;
    Heads heads;  // without any: a layer of Mamba
    AttentionWeights attn;
    MambaWeights mamba;
    FeedForwardWeights ffn;
    ExpertWeights experts;  // in place of ffn where the layer has them
};

class Jamba final : public Decoder {
public:
    Jamba(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          sizes_(read_ssm_sizes(hp)),
          counts_(read_expert_counts(hp)) {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.heads = read_heads(hp, width, i);
            layer.mixer_norm = read_norm(l, "attn_norm", width);
            if (layer.heads.n_kv_heads > 0)
                layer.attn = read_attention(l, width, layer.heads);
            else
                layer.mamba = read_mamba(l, hp, width, sizes_);
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            if (l.has("ffn_gate_inp.weight"))
                layer.experts = read_experts(l, width, n_ffn, counts_);
            else
                layer.ffn = read_feed_forward(l, width, n_ffn);
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_)
            if (layer.heads.n_kv_heads > 0)
                specs.push_back({attention_spec(layer.heads)});
            else
                specs.push_back({mamba_spec(sizes_)});
        return specs;
    }

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.mixer_norm), Role::attn_norm, i);
        x = step.name(x + mix(step, i, h, w), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        if (!w.experts.router) return x + feed_forward(step, i, n, w.ffn, Activation::silu);
        const RouteParams routing{counts_.n_used, /*renormalize=*/false, 1.0f};
        return x + experts(step, i, n, w.experts, routing, Activation::silu);
    }

private:
    Value mix(Step& step, int i, Value h, const Layer& w) const {
        if (w.heads.n_kv_heads == 0) return mamba(step, i, 0, h, w.mamba, sizes_, norm_);
        const Qkv qkv = project_qkv(step, i, h, w.attn, w.heads, norm_);
        const Step::Attention how{.scale = 1.0f / std::sqrt(static_cast<float>(w.heads.head_dim))};
        const Value y = attention(step, i, qkv, how);
        return project_out(step, i, y, w.attn);
    }

    SsmSizes sizes_;
    ExpertCounts counts_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_jamba(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Jamba>(hparams, weights);
}

}  // namespace plait
