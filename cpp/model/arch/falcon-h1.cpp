// Falcon-H1. Zuo et al. 2025, arXiv:2507.22448: in every layer attention and Mamba-2 look at the
// same input side by side. The model's multipliers are within its weights.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x)) + mamba2(n(x))     n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

enum Slot : int { kKeys, kStates };  // of a layer's memory

struct Layer {
    NormWeights mixer_norm, ffn_norm;
    AttentionWeights attn;
    Mamba2Weights mamba;
    FeedForwardWeights ffn;
};

class FalconH1 final : public Decoder {
public:
    FalconH1(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim), .slot = kKeys},
          sizes_(read_grouped_ssm_sizes(hp)) {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.mixer_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_attention(l, width, heads_);
            layer.mamba = read_mamba2(l, width, sizes_);
            // Written without ".weight" by the converter of these files.
            layer.ffn_norm.weight =
                l.get(l.has("ffn_norm") ? "ffn_norm" : "ffn_norm.weight", {width});
            layer.ffn = read_feed_forward(l, width, n_ffn);
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_), mamba2_spec(sizes_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.mixer_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        const Value attended = project_out(step, i, y, w.attn);
        x = x + (attended + mamba2(step, i, kStates, h, w.mamba, sizes_, norm_));
        step.name(x, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        return x + feed_forward(step, i, n, w.ffn, Activation::silu);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    SsmSizes sizes_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_falcon_h1(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<FalconH1>(hparams, weights);
}

}  // namespace plait
