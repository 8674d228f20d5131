// GLM-4-0414. Zhipu AI 2025, https://huggingface.co/THUDM/GLM-4-9B-0414; GLM: arXiv:2406.12793. What
// a block adds is normalised once more, one matrix holds gate and up, and half of a head is rotated;
// with images (GLM-4.1V), by three positions a token.
//
//   x += n(Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv))    n = RMSNorm
//   x += n(Wdown . (silu(g) * u)),  [g, u] = Wup . n(x)                                 SwiGLU
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, post_attn_norm, ffn_norm, post_ffn_norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
};

ModelInfo glm4_info(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    if (has_rope_sections(hp)) info.n_pos_per_token = 4;
    return info;
}

class Glm4 final : public Decoder {
public:
    Glm4(const Hparams& hp, const Weights& w)
        : Decoder(glm4_info(hp, w), w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(info().n_pos_per_token > 1 ? read_mrope(hp, heads_.head_dim)
                                           : read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "attn_norm", width), read_norm(l, "post_attention_norm", width),
                 read_norm(l, "ffn_norm", width), read_norm(l, "post_ffw_norm", width),
                 read_attention(l, width, heads_),
                 read_feed_forward(l, width, n_ffn, FeedForward::gate_in_up)});
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        const Value a = normalize(step, project_out(step, i, y, w.attn), w.post_attn_norm);
        x = step.name(x + a, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        const Value f = feed_forward(step, i, n, w.ffn, Activation::silu);
        return x + normalize(step, f, w.post_ffn_norm);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_glm4(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Glm4>(hparams, weights);
}

}  // namespace plait
