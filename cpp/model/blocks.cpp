#include "model/blocks.h"

#include "base/text.h"

namespace plait {

Heads read_heads(const Hparams& hp, int width) {
    Heads heads;
    heads.n_heads = hp.count("attention.head_count");
    heads.n_kv_heads = hp.count("attention.head_count_kv", Hparams::kMost, heads.n_heads);
    if (heads.n_heads % heads.n_kv_heads != 0)
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

AttentionSpec attention_spec(const Heads& heads, const Rope& rope, Window window) {
    return {.n_kv_heads = heads.n_kv_heads,
            .key_dim = heads.head_dim,
            .value_dim = heads.head_dim,
            .window = window,
            .shifts_magnify = rope.magnitude != 1.0};
}

AttentionWeights read_attention(const LayerWeights& w, int width, const Heads& heads) {
    const int64_t n_q = int64_t{heads.n_heads} * heads.head_dim;
    const int64_t n_kv = int64_t{heads.n_kv_heads} * heads.head_dim;
    return {
        .wq = w.get("attn_q.weight", {n_q, width}), .bq = w.find("attn_q.bias", {n_q}),
        .wk = w.get("attn_k.weight", {n_kv, width}), .bk = w.find("attn_k.bias", {n_kv}),
        .wv = w.get("attn_v.weight", {n_kv, width}), .bv = w.find("attn_v.bias", {n_kv}),
        .wo = w.get("attn_output.weight", {width, n_q}), .bo = w.find("attn_output.bias", {width}),
    };
}

Value rotary_attention(Step& step, int layer, Value x, const AttentionWeights& w, const Heads& heads,
                       const Rope& rope, Value table, const Step::Attention& how) {
    const auto project = [&](const Weight& weight, const Weight& bias, int n_heads) {
        return split_heads(linear(x, step.weight(weight), step.weight(bias)), n_heads);
    };
    const Value q = plait::rope(project(w.wq, w.bq, heads.n_heads), table, rope);
    const Value k = plait::rope(project(w.wk, w.bk, heads.n_kv_heads), table, rope);
    const Value v = project(w.wv, w.bv, heads.n_kv_heads);
    step.name(q, Role::q_rope, layer);
    step.name(k, Role::k_rope, layer);
    step.name(v, Role::v, layer);
    return merge_heads(step.attend(layer, q, k, v, how));
}

FeedForwardWeights read_feed_forward(const LayerWeights& w, int width, int n_ffn) {
    return {
        .gate = w.get("ffn_gate.weight", {n_ffn, width}), .gate_bias = w.find("ffn_gate.bias", {n_ffn}),
        .up = w.get("ffn_up.weight", {n_ffn, width}), .up_bias = w.find("ffn_up.bias", {n_ffn}),
        .down = w.get("ffn_down.weight", {width, n_ffn}), .down_bias = w.find("ffn_down.bias", {width}),
    };
}

Value gated_feed_forward(Step& step, int layer, Value x, const FeedForwardWeights& w, Activation how) {
    const Value g = step.name(linear(x, step.weight(w.gate), step.weight(w.gate_bias)), Role::ffn_gate, layer);
    const Value up = step.name(linear(x, step.weight(w.up), step.weight(w.up_bias)), Role::ffn_up, layer);
    const Value h = step.name(gate(g, up, how), Role::ffn_act, layer);
    return step.name(linear(h, step.weight(w.down), step.weight(w.down_bias)), Role::ffn_out, layer);
}

ExpertCounts read_expert_counts(const Hparams& hp) {
    constexpr int64_t kMostExperts = 65536;
    const ExpertCounts counts{hp.index("expert_count", kMostExperts, 0),
                              hp.index("expert_used_count", kMostExperts, 0)};
    if (counts.n_experts > 0 && (counts.n_used < 1 || counts.n_used > counts.n_experts))
        hp.refuse("expert_used_count", text("expected 1 to ", counts.n_experts, ", got ", counts.n_used));
    return counts;
}

ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn, const ExpertCounts& counts) {
    const int64_t n_experts = counts.n_experts;
    return {
        .router = w.get("ffn_gate_inp.weight", {n_experts, width}),
        .gate = w.get("ffn_gate_exps.weight", {n_experts, n_ffn, width}),
        .up = w.get("ffn_up_exps.weight", {n_experts, n_ffn, width}),
        .down = w.get("ffn_down_exps.weight", {n_experts, width, n_ffn}),
        .n_used = counts.n_used,
    };
}

Value gated_experts(Step& step, int layer, Value x, const ExpertWeights& w, Activation how) {
    const Value logits = step.name(linear(x, step.weight(w.router)), Role::router, layer);
    const Value routes = route(logits, {w.n_used, w.renormalize, w.scale});
    const Value g = step.name(expert_linear(x, step.weight(w.gate), routes), Role::ffn_gate, layer);
    const Value up = step.name(expert_linear(x, step.weight(w.up), routes), Role::ffn_up, layer);
    const Value h = step.name(gate(g, up, how), Role::ffn_act, layer);
    const Value y = step.name(expert_linear(h, step.weight(w.down), routes), Role::experts, layer);
    return step.name(combine(y, routes), Role::ffn_out, layer);
}

}  // namespace plait
