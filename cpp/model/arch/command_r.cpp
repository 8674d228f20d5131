// Command R and R+. Cohere 2024, https://docs.cohere.com/docs/command-r: attention and feed-forward
// side by side; R+ normalises queries and keys, each head with a weight of its own.
//
//   h  = n(x)                                                     n = LayerNorm without bias
//   x += Wo . attend(rope(nq(Wq h)), rope(nk(Wk h)), Wv h) + Wdown . (silu(Wgate h) * Wup h)
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights norm;
    AttentionWeights attn;
    FeedForwardWeights ffn;
};

class CommandR final : public Decoder {
public:
    CommandR(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::layer(hp)),
          heads_(read_heads(hp, info().width)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/true)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)} {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        logit_scale_ = hp.positive("logit_scale", 1.0f);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            const QkNorm qk = l.has("attn_q_norm.weight") ? QkNorm::each_head : QkNorm::none;
            layers_.push_back({read_norm(l, "attn_norm", width),
                               read_attention(l, width, heads_, qk),
                               read_feed_forward(l, width, n_ffn)});
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {attention_spec(heads_, rope_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.norm), Role::attn_norm, i);
        const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        x = x + project_out(step, i, y, w.attn);
        return x + feed_forward(step, i, h, w.ffn, Activation::silu);
    }

private:
    Heads heads_;
    Rope rope_;
    Step::Attention attention_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_command_r(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<CommandR>(hparams, weights);
}

}  // namespace plait
