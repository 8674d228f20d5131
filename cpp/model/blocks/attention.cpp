#include "model/blocks/attention.h"

#include <cmath>

#include "base/text.h"

namespace plait {
namespace {

// A value of a key that is one number, or a list with one for each layer.
int of_layer(const Hparams& hp, std::string_view suffix, int layer, int64_t least, int fallback) {
    if (!hp.has(suffix)) return fallback;
    return hp.per_layer(suffix, layer + 1, least, Hparams::kMost).back();
}

// Normalises heads one by one or all at once, as the weight is long.
Value normalize_heads(Step& step, Value x, int n_heads, const Weight& weight, const Norm& norm) {
    if (!weight) return split_heads(x, n_heads);
    const bool whole =
        weight.type.shape.rank == 1 && n_heads > 1 && weight.type.shape[0] == x.shape()[1];
    const NormWeights w{weight, {}};
    if (whole) return split_heads(normalize(step, x, w, norm), n_heads);
    return normalize(step, split_heads(x, n_heads), w, norm);
}

}  // namespace

Heads read_heads(const Hparams& hp, int width, int layer) {
    Heads heads;
    heads.n_heads = hp.per_layer("attention.head_count", layer + 1, 0, Hparams::kMost).back();
    heads.n_kv_heads = of_layer(hp, "attention.head_count_kv", layer, 0, heads.n_heads);
    if (heads.n_kv_heads == 0) return heads;
    if (heads.n_heads == 0 || heads.n_heads % heads.n_kv_heads != 0)
        hp.refuse("attention.head_count_kv",
                  text(heads.n_kv_heads, " does not divide the ", heads.n_heads, " heads"));
    if (!hp.has("attention.key_length") && width % heads.n_heads != 0)
        hp.refuse("attention.head_count",
                  text(heads.n_heads, " does not divide the width ", width));
    heads.head_dim = hp.count("attention.key_length", Hparams::kMost, width / heads.n_heads);
    if (hp.count("attention.value_length", Hparams::kMost, heads.head_dim) != heads.head_dim)
        hp.refuse("attention.value_length",
                  text("expected ", heads.head_dim, ", the length of keys"));
    return heads;
}

Heads read_heads(const Hparams& hp, int width) {
    const Heads heads = read_heads(hp, width, 0);
    if (heads.n_kv_heads == 0) hp.refuse("attention.head_count", "expected at least one head");
    return heads;
}

AttentionSpec attention_spec(const Heads& heads, const Rope& rope, Window window) {
    return {.n_kv_heads = heads.n_kv_heads,
            .key_dim = heads.head_dim,
            .value_dim = heads.head_dim,
            .window = window,
            .shifts_magnify = rope.magnitude != 1.0};
}

AttentionSpec attention_spec(const Heads& heads, Window window) {
    return {.n_kv_heads = heads.n_kv_heads,
            .key_dim = heads.head_dim,
            .value_dim = heads.head_dim,
            .window = window,
            .shifts = false};
}

AttentionWeights read_attention(const LayerWeights& w, int width, const Heads& heads, QkNorm norm) {
    const int64_t n_q = int64_t{heads.n_heads} * heads.head_dim;
    const int64_t n_kv = int64_t{heads.n_kv_heads} * heads.head_dim;
    AttentionWeights a;
    if (w.has("attn_qkv.weight")) {
        a.wqkv = w.get("attn_qkv.weight", {n_q + 2 * n_kv, width});
        a.bqkv = w.find("attn_qkv.bias", {n_q + 2 * n_kv});
    } else {
        a.wq = w.get("attn_q.weight", {n_q, width});
        a.bq = w.find("attn_q.bias", {n_q});
        a.wk = w.get("attn_k.weight", {n_kv, width});
        a.bk = w.find("attn_k.bias", {n_kv});
        a.wv = w.get("attn_v.weight", {n_kv, width});
        a.bv = w.find("attn_v.bias", {n_kv});
    }
    a.wo = w.get("attn_output.weight", {width, n_q});
    a.bo = w.find("attn_output.bias", {width});
    if (norm != QkNorm::none) {
        const auto shape = [&](int n_heads) -> Shape {
            if (norm == QkNorm::each_head) return {n_heads, heads.head_dim};
            return {norm == QkNorm::whole ? int64_t{n_heads} * heads.head_dim : heads.head_dim};
        };
        a.q_norm = w.get("attn_q_norm.weight", shape(heads.n_heads));
        a.k_norm = w.get("attn_k_norm.weight", shape(heads.n_kv_heads));
    }
    return a;
}

Qkv project_qkv(Step& step, int layer, Value x, const AttentionWeights& w, const Heads& heads,
                const Norm& norm) {
    Value q, k, v;
    if (w.wqkv) {
        const int64_t n_q = int64_t{heads.n_heads} * heads.head_dim;
        const int64_t n_kv = int64_t{heads.n_kv_heads} * heads.head_dim;
        const Value all = linear(x, step.weight(w.wqkv), step.weight(w.bqkv));
        q = slice(all, 0, n_q);
        k = slice(all, n_q, n_kv);
        v = slice(all, n_q + n_kv, n_kv);
    } else {
        q = linear(x, step.weight(w.wq), step.weight(w.bq));
        k = linear(x, step.weight(w.wk), step.weight(w.bk));
        v = linear(x, step.weight(w.wv), step.weight(w.bv));
    }
    return {step.name(normalize_heads(step, q, heads.n_heads, w.q_norm, norm), Role::q, layer),
            step.name(normalize_heads(step, k, heads.n_kv_heads, w.k_norm, norm), Role::k, layer),
            step.name(split_heads(v, heads.n_kv_heads), Role::v, layer)};
}

Qkv rotate(Step& step, int layer, const Qkv& qkv, const Rope& rope, const Weight& factors) {
    return {step.name(step.rotate(qkv.q, rope, factors), Role::q_rope, layer),
            step.name(step.rotate(qkv.k, rope, factors), Role::k_rope, layer), qkv.v};
}

Value attention(Step& step, int layer, const Qkv& qkv, const Step::Attention& how) {
    return merge_heads(step.attend(layer, qkv.q, qkv.k, qkv.v, how));
}

Value attention_within(Step& step, int layer, const Qkv& qkv, const Step::Attention& how) {
    return merge_heads(step.attend_within(layer, qkv.q, qkv.k, qkv.v, how));
}

Value rotary_attention(Step& step, int layer, const Qkv& qkv, const Rope& rope,
                       const Weight& factors, const Step::Attention& how) {
    return attention(step, layer, rotate(step, layer, qkv, rope, factors), how);
}

Value project_out(Step& step, int layer, Value y, const AttentionWeights& w) {
    return step.name(linear(y, step.weight(w.wo), step.weight(w.bo)), Role::attn_out, layer);
}

float attention_scale(const Hparams& hp, int head_dim) {
    const float stated = hp.number("attention.scale", 0.0f);  // 0: the usual one
    return stated != 0.0f ? stated : 1.0f / std::sqrt(static_cast<float>(head_dim));
}

std::vector<Window> read_windows(const Hparams& hp, int n_layers, int pattern, int tokens,
                                 FullLayer full) {
    constexpr std::string_view kSize = "attention.sliding_window";
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    const auto layers = static_cast<size_t>(n_layers);
    std::vector<Window> windows(layers);
    tokens = hp.index(kSize, INT32_MAX, tokens);
    if (tokens == 0) return windows;
    std::vector<bool> slides(layers);
    if (hp.has(kPattern) && hp.metadata().at(hp.key(kPattern)).is_array()) {
        slides = hp.flags(kPattern, n_layers);
    } else {
        const int every = hp.index(kPattern, Hparams::kMost, pattern);
        for (size_t i = 0; i < layers; ++i)
            slides[i] = every == 0 ||
                        static_cast<int>(i) % every != (full == FullLayer::first ? 0 : every - 1);
    }
    for (size_t i = 0; i < layers; ++i)
        if (slides[i]) windows[i] = {WindowKind::sliding, tokens};
    return windows;
}

}  // namespace plait
