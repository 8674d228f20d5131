// BitNet b1.58. Ma et al. 2024, arXiv:2402.17764: LLaMA with ternary matrices, each with one factor
// s, and with an additional norm before the output matrices of attention and feed-forward. n =
// RMSNorm.
//
//   x += so Wo n(attend(rope(sq Wq n(x)), rope(sk Wk n(x)), sv Wv n(x)))
//   x += sd Wdown n(silu(sg Wgate n(x)) * su Wup n(x))                      SwiGLU
#include "model/decoder.h"

namespace plait {
namespace {

// A matrix with its factor.
struct Scaled {
    Weight weight, factor;  // [out, in], [1]; the factor is optional

    Value operator()(Step& step, Value x) const {
        const Value y = linear(x, step.weight(weight));
        return factor ? y * step.weight(factor) : y;
    }
};

struct BitNetLayer {
    Scaled q, k, v, out;               // [h d, width], [hk d, width], [hk d, width], [width, h d]
    Scaled gate, up, down;             // [ffn, width], [ffn, width], [width, ffn]
    NormWeights attend_out, gate_out;  // [h d], [ffn]
};

class BitNet final : public Decoder {
public:
    BitNet(const Hparams& hp, const Weights& w, ModelForm form) : Decoder(hp, w, std::move(form)) {
        const int64_t width = info().width;
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            const Heads& heads = attention_form(i).heads;
            const int n_ffn =
                hp.per_layer("feed_forward_length", i + 1, 1, Hparams::kMaxSize).back();
            const auto read = [&](const std::string& name, int64_t out, int64_t in) -> Scaled {
                return {l.get(name + ".weight", {out, in}), l.find(name + ".scale", {1})};
            };
            layers_.push_back({.q = read("attn_q", heads.queries(), width),
                               .k = read("attn_k", heads.keys(), width),
                               .v = read("attn_v", heads.keys(), width),
                               .out = read("attn_output", width, heads.queries()),
                               .gate = read("ffn_gate", n_ffn, width),
                               .up = read("ffn_up", n_ffn, width),
                               .down = read("ffn_down", width, n_ffn),
                               .attend_out = read_norm(l, "attn_sub_norm", heads.queries()),
                               .gate_out = read_norm(l, "ffn_sub_norm", n_ffn)});
        }
    }

protected:
    Value mixer(Step& step, int i, Value h) const override {
        const BitNetLayer& w = layers_[static_cast<size_t>(i)];
        const AttentionForm& form = attention_form(i);
        const auto& [n_heads, n_kv_heads, head_dim] = form.heads;
        const Rope& rope = form.rotation.rope;
        const Value q = step.rotate(split_heads(w.q(step, h), n_heads), rope);
        const Value k = step.rotate(split_heads(w.k(step, h), n_kv_heads), rope);
        const Value v = split_heads(w.v(step, h), n_kv_heads);
        const Value y = merge_heads(step.attend(i, step.name(q, Role::q_rope, i),
                                                step.name(k, Role::k_rope, i), v, form.how));
        return step.name(w.out(step, normalize(step, y, w.attend_out)), Role::attn_out, i);
    }

    Value block(Step& step, int i, Value h) const override {
        const BitNetLayer& w = layers_[static_cast<size_t>(i)];
        const Value y = gate(w.gate(step, h), w.up(step, h), form_.activation);
        step.name(y, Role::ffn_act, i);
        return step.name(w.down(step, normalize(step, y, w.gate_out)), Role::ffn_out, i);
    }

private:
    std::vector<BitNetLayer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_bitnet(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves);
    form.feed_forward = FeedForward::custom;
    return std::make_unique<BitNet>(hp, w, std::move(form));
}

}  // namespace plait
