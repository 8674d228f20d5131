#include "model/blocks/attention.h"

#include <cmath>

#include "base/text.h"

namespace plait {
namespace {

// Reads the value of a layer from a key that holds one number or an array with one number per
// layer.
int of_layer(const Hparams& hp, std::string_view suffix, int layer, int64_t least, int fallback) {
    if (!hp.has(suffix)) return fallback;
    return hp.per_layer(suffix, layer + 1, least, Hparams::kMaxSize).back();
}

// [n, h d], or [n, h, d] unless the norm spans heads -> [n, h, d]
Value normalize_heads(Step& step, Value x, const Weight& weight, int n_heads, QkNorm kind,
                      const Norm& norm) {
    const NormWeights w{weight, {}};
    if (weight && kind == QkNorm::whole) return split_heads(normalize(step, x, w, norm), n_heads);
    if (x.shape().rank == 2) x = split_heads(x, n_heads);
    return weight ? normalize(step, x, w, norm) : x;
}

struct Projections {
    Value q, gate;  // [n, h, d]; the gate is optional
    Value k, v;     // [n, hk, d]; absent if another layer stores them
};

// The products of x, not yet split into heads.
Projections multiply(Step& step, Value x, const AttentionWeights& w, const AttentionForm& form) {
    Projections p;
    if (w.wqkv) {
        const Value all = linear(x, step.weight(w.wqkv), step.weight(w.bqkv));
        p.q = slice(all, 0, form.heads.queries());
        p.k = slice(all, form.heads.queries(), form.heads.keys());
        p.v = slice(all, form.heads.queries() + form.heads.keys(), form.heads.keys());
    } else {
        p.q = linear(x, step.weight(w.wq), step.weight(w.bq));
        if (form.owner >= 0) return p;
        p.k = linear(x, step.weight(w.wk), step.weight(w.bk));
        p.v = w.wv ? linear(x, step.weight(w.wv), step.weight(w.bv)) : p.k;
    }
    if (form.clamp > 0.0f)
        for (Value* each : {&p.q, &p.k, &p.v}) *each = clamp(*each, form.clamp);
    return p;
}

Projections project(Step& step, int layer, Value x, const AttentionWeights& w,
                    const AttentionForm& form, const Norm& norm) {
    const auto& [n_heads, n_kv_heads, head_dim] = form.heads;
    Projections p = multiply(step, x, w, form);
    if (form.gated) {
        const Value both = split_heads(p.q, n_heads);
        p.gate = slice(both, head_dim, head_dim);
        p.q = slice(both, 0, head_dim);
    }
    const bool normalizes = form.qk_norm != QkNorm::none && !form.norm_after_rotation;
    const Weight none;
    p.q = normalize_heads(step, p.q, normalizes ? w.q_norm : none, n_heads, form.qk_norm, norm);
    step.name(p.q, Role::q, layer);
    if (!p.k) return p;
    p.k = normalize_heads(step, p.k, normalizes ? w.k_norm : none, n_kv_heads, form.qk_norm, norm);
    step.name(p.k, Role::k, layer);
    p.v = split_heads(p.v, n_kv_heads);
    if (form.normalizes_values) p.v = rms_norm(p.v, {}, norm.epsilon);
    step.name(p.v, Role::v, layer);
    return p;
}

// Rotates queries and keys by their positions, and scales queries.
void place(Step& step, int layer, Projections& p, const AttentionWeights& w,
           const AttentionForm& form, const Norm& norm) {
    if (form.rotates && form.rotation.rope.n_rot > 0) {
        const Weight& factors = form.rotation.factors_for(step.n_ctx());
        p.q = step.name(step.rotate(p.q, form.rotation.rope, factors), Role::q_rope, layer);
        if (p.k)
            p.k = step.name(step.rotate(p.k, form.rotation.rope, factors), Role::k_rope, layer);
    }
    if (form.norm_after_rotation) {
        p.q = normalize(step, p.q, {w.q_norm, {}}, norm);
        p.k = normalize(step, p.k, {w.k_norm, {}}, norm);
    }
    if (form.temperature.scale != 0.0f)
        p.q = split_heads(scale_queries(step, merge_heads(p.q), form.temperature),
                          form.heads.n_heads);
}

}  // namespace

Heads read_heads(const Hparams& hp, int width, int layer) {
    Heads heads;
    heads.n_heads = hp.per_layer("attention.head_count", layer + 1, 0, Hparams::kMaxSize).back();
    heads.n_kv_heads = of_layer(hp, "attention.head_count_kv", layer, 0, heads.n_heads);
    if (heads.n_kv_heads == 0) return heads;
    if (heads.n_heads == 0 || heads.n_heads % heads.n_kv_heads != 0)
        hp.refuse("attention.head_count_kv",
                  text(heads.n_kv_heads, " does not divide the ", heads.n_heads, " heads"));
    if (!hp.has("attention.key_length") && width % heads.n_heads != 0)
        hp.refuse("attention.head_count",
                  text(heads.n_heads, " does not divide the width ", width));
    heads.head_dim = hp.count("attention.key_length", Hparams::kMaxSize, width / heads.n_heads);
    if (hp.count("attention.value_length", Hparams::kMaxSize, heads.head_dim) != heads.head_dim)
        hp.refuse("attention.value_length",
                  text("expected ", heads.head_dim, ", the length of keys"));
    return heads;
}

std::vector<StateSpec> attention_memory(const AttentionForm& form) {
    if (form.owner >= 0) return {};
    const bool has_bias = form.how.alibi_max_bias > 0.0f || form.how.bias;
    const bool is_rotated = form.rotates || form.only_shifts_rotate;
    if (form.within) return {WithinSpec{.window = form.window, .needs_key_positions = has_bias}};
    return {AttentionSpec{.n_kv_heads = form.heads.n_kv_heads,
                          .key_dim = form.heads.head_dim,
                          .value_dim = form.heads.head_dim,
                          .window = form.window,
                          .needs_key_positions = has_bias,
                          .always_causal = form.always_causal,
                          .shifts = is_rotated && form.rotation.rope.n_rot > 0}};
}

AttentionWeights read_attention(const LayerWeights& w, int width, const AttentionForm& form) {
    const Heads& heads = form.heads;
    const int64_t n_q = heads.queries(), n_kv = heads.keys();
    AttentionWeights a;
    if (w.has("attn_qkv.weight")) {
        a.wqkv = w.get("attn_qkv.weight", {n_q + 2 * n_kv, width});
        a.bqkv = w.find("attn_qkv.bias", {n_q + 2 * n_kv});
    } else {
        const int64_t n_wq = form.gated ? 2 * n_q : n_q;
        a.wq = w.get("attn_q.weight", {n_wq, width});
        a.bq = w.find("attn_q.bias", {n_wq});
        const bool needs_keys = form.owner < 0;  // some files hold keys that are not used
        const bool needs_values = needs_keys && !form.keys_may_be_values;
        const Shape kv{n_kv, width};
        a.wk = needs_keys ? w.get("attn_k.weight", kv) : w.find("attn_k.weight", kv);
        a.bk = w.find("attn_k.bias", {n_kv});
        a.wv = needs_values ? w.get("attn_v.weight", kv) : w.find("attn_v.weight", kv);
        a.bv = w.find("attn_v.bias", {n_kv});
    }
    a.wo = w.get("attn_output.weight", {width, n_q});
    a.bo = w.find("attn_output.bias", {width});
    if (form.has_sinks) a.sinks = w.get("attn_sinks.weight", {heads.n_heads});
    if (form.qk_norm == QkNorm::none) return a;
    const auto shape = [&](int n_heads) -> Shape {
        if (form.qk_norm == QkNorm::per_head) return {n_heads, heads.head_dim};
        return {form.qk_norm == QkNorm::whole ? int64_t{n_heads} * heads.head_dim : heads.head_dim};
    };
    a.q_norm = w.get("attn_q_norm.weight", shape(heads.n_heads));
    const Shape of_keys = shape(heads.n_kv_heads);
    a.k_norm = form.owner < 0 ? w.get("attn_k_norm.weight", of_keys)
                              : w.find("attn_k_norm.weight", of_keys);
    return a;
}

Value attention(Step& step, int layer, Value x, const AttentionWeights& w,
                const AttentionForm& form, const Norm& norm) {
    Projections p = project(step, layer, x, w, form, norm);
    place(step, layer, p, w, form, norm);
    Step::Attention how = form.how;
    how.sinks = w.sinks;
    Value y = merge_heads(form.owner >= 0 ? step.attend_shared(layer, form.owner, p.q, how)
                          : form.within   ? step.attend_within(layer, p.q, p.k, p.v, how)
                                          : step.attend(layer, p.q, p.k, p.v, how));
    if (p.gate) y = gate(merge_heads(p.gate), y, Activation::sigmoid);
    return step.name(linear(y, step.weight(w.wo), step.weight(w.bo)), Role::attn_out, layer);
}

Temperature read_temperature(const Hparams& hp) {
    constexpr std::string_view kLength = "attention.temperature_length";
    constexpr std::string_view kOriginal = "rope.scaling.original_context_length";
    const float scale = hp.number("attention.temperature_scale", 0.0f);
    if (scale == 0.0f) return {};
    for (const std::string_view key : {kLength, kOriginal})
        if (hp.has(key)) return {.scale = scale, .length = hp.count(key, INT32_MAX)};
    return {.scale = scale, .length = hp.count("context_length", INT32_MAX)};
}

Value scale_queries(Step& step, Value q, const Temperature& temperature) {
    return temperature.scale == 0.0f ? q : q * step.temperature(temperature);
}

float read_clamp(const Hparams& hp) {
    constexpr std::string_view kKey = "attention.clamp_kqv";
    return hp.number(kKey, 0.0f) == 0.0f ? 0.0f : hp.positive(kKey);
}

float read_attention_scale(const Hparams& hp, int head_dim) {
    const float stated = hp.number("attention.scale", 0.0f);
    return stated != 0.0f ? stated : 1.0f / std::sqrt(static_cast<float>(head_dim));
}

void expect_unscaled_attention(const Hparams& hp) {
    const float stated = read_attention_scale(hp, 1);
    if (stated != 1.0f) hp.refuse("attention.scale", text("expected 1, got ", stated));
}

std::vector<Window> read_windows(const Hparams& hp, int n_layers, int pattern, int tokens,
                                 FullLayer full) {
    constexpr std::string_view kSize = "attention.sliding_window";
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    const auto layers = static_cast<size_t>(n_layers);
    std::vector<Window> windows(layers);
    tokens = hp.index(kSize, INT32_MAX, tokens);
    // This marks the pattern as read. Without a window, its value changes nothing.
    const bool has_pattern = hp.has(kPattern);
    if (tokens == 0) return windows;
    std::vector<bool> slides(layers);
    if (has_pattern && hp.metadata().at(hp.key(kPattern)).is_array()) {
        slides = hp.flags(kPattern, n_layers);
    } else {
        const int every = hp.index(kPattern, Hparams::kMaxSize, pattern);
        for (size_t i = 0; i < layers; ++i)
            slides[i] = every == 0 ||
                        static_cast<int>(i) % every != (full == FullLayer::first ? 0 : every - 1);
    }
    for (size_t i = 0; i < layers; ++i)
        if (slides[i]) windows[i] = {WindowKind::sliding, tokens};
    return windows;
}

}  // namespace plait
