// Qwen3-Next. Qwen team 2025, https://qwen.ai/blog?id=qwen3-next: most layers are gated delta nets,
// Yang et al. 2024, arXiv:2412.06464, others attention whose output has a gate; experts in all.
//
//   q, k, v = silu(conv(Wqkv . n(x))), q and k of unit length;  b, a = Wba . n(x)      n = RMSNorm
//   x += Wout . (n_h(delta(q / sqrt(d), k, v, A softplus(a + t), sigmoid(b))) * silu(Wz . n(x)))
//   or  q, g = Wq . n(x);  x += Wo . (sigmoid(g) * attend(rope(n_h(q)), rope(n_h(k)), v))
//   x += sum_e p_e f_e(n(x)) + sigmoid(w . n(x)) f_shared(n(x))                SwiGLU each
#include <cmath>

#include "model/blocks/attention.h"
#include "model/blocks/delta_net.h"
#include "model/blocks/experts.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights mixer_norm, ffn_norm;
    bool attends = false;
    AttentionWeights attn;  // wq holds queries and gates, head by head: [h 2 d, width]
    DeltaNetWeights delta;
    ExpertWeights experts;
    SharedExpertWeights shared;
};

// Flags of the file, or every so many layers one that attends.
std::vector<bool> read_attending(const Hparams& hp, int n_layers) {
    std::vector<bool> attends(static_cast<size_t>(n_layers));
    if (hp.has("attention.recurrent_layers")) {
        const std::vector<int> recurs = hp.per_layer("attention.recurrent_layers", n_layers, 0, 1);
        for (size_t i = 0; i < attends.size(); ++i) attends[i] = recurs[i] == 0;
    } else {
        const int every = hp.count("full_attention_interval", Hparams::kMost, 4);
        for (int i = 0; i < n_layers; ++i) attends[static_cast<size_t>(i)] = (i + 1) % every == 0;
    }
    return attends;
}

class Qwen3Next final : public Decoder {
public:
    Qwen3Next(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)),
          heads_(read_heads(hp, info().width)),
          counts_(read_expert_counts(hp, 1)),
          rope_(read_rope(hp, heads_.head_dim, /*interleaved=*/false)),
          attention_{.scale = attention_scale(hp, heads_.head_dim)},
          sizes_(read_delta_net_sizes(hp)) {
        const int width = info().width;
        const int n_ffn = read_expert_length(hp, counts_);
        const int n_shared = hp.index("expert_shared_feed_forward_length", Hparams::kMost, 0);
        const std::vector<bool> attends = read_attending(hp, info().n_layers);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.mixer_norm = read_norm(l, "attn_norm", width);
            layer.attends = attends[static_cast<size_t>(i)];
            if (layer.attends)
                layer.attn = read_gated_attention(l);
            else
                layer.delta = read_delta_net(l, width, sizes_);
            layer.ffn_norm = read_norm(l, "post_attention_norm", width);
            layer.experts = read_experts(l, width, n_ffn, counts_);
            layer.shared = read_shared_expert(
                l, width, n_shared > 0 ? n_shared : hp.count("feed_forward_length"));
        }
    }

    MemorySpecs memory_specs() const override {
        MemorySpecs specs;
        for (const Layer& layer : layers_)
            if (layer.attends)
                specs.push_back({attention_spec(heads_, rope_)});
            else
                specs.push_back({delta_net_spec(sizes_)});
        return specs;
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override { return {rope_, {}}; }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.mixer_norm), Role::attn_norm, i);
        const Value mixed = w.attends ? attend(step, i, h, w.attn)
                                      : delta_net(step, i, 0, h, w.delta, sizes_, norm_);
        x = step.name(x + mixed, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        const RouteParams routing{counts_.n_used, /*renormalize=*/true, 1.0f};
        const Value chosen = experts(step, i, n, w.experts, routing, Activation::silu);
        return x + (chosen + shared_expert(step, i, n, w.shared, Activation::silu));
    }

private:
    AttentionWeights read_gated_attention(const LayerWeights& l) const {
        const int64_t n_q = int64_t{heads_.n_heads} * heads_.head_dim;
        const int64_t n_kv = int64_t{heads_.n_kv_heads} * heads_.head_dim;
        AttentionWeights a;
        a.wq = l.get("attn_q.weight", {2 * n_q, info().width});
        a.wk = l.get("attn_k.weight", {n_kv, info().width});
        a.wv = l.get("attn_v.weight", {n_kv, info().width});
        a.wo = l.get("attn_output.weight", {info().width, n_q});
        a.q_norm = l.get("attn_q_norm.weight", {heads_.head_dim});
        a.k_norm = l.get("attn_k_norm.weight", {heads_.head_dim});
        return a;
    }

    Value attend(Step& step, int i, Value h, const AttentionWeights& w) const {
        const int d = heads_.head_dim;
        const Value both = split_heads(linear(h, step.weight(w.wq)), heads_.n_heads);
        const Value k = split_heads(linear(h, step.weight(w.wk)), heads_.n_kv_heads);
        const Value v = split_heads(linear(h, step.weight(w.wv)), heads_.n_kv_heads);
        const Qkv qkv{normalize(step, slice(both, 0, d), {w.q_norm, {}}),
                      normalize(step, k, {w.k_norm, {}}), v};
        const Value y = rotary_attention(step, i, qkv, rope_, {}, attention_);
        const Value gated = gate(merge_heads(slice(both, d, d)), y, Activation::sigmoid);
        return project_out(step, i, gated, w);
    }

    Heads heads_;
    ExpertCounts counts_;
    Rope rope_;
    Step::Attention attention_;
    DeltaNetSizes sizes_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen3next(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen3Next>(hparams, weights);
}

}  // namespace plait
