#include "model/blocks/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

LatentSizes read_sizes(const Hparams& hp, int value_dim) {
    LatentSizes s;
    s.n_heads = hp.count("attention.head_count");
    s.rank = hp.count("attention.kv_lora_rank");
    s.query_rank = hp.index("attention.q_lora_rank", Hparams::kMaxSize, 0);
    s.stores_latent = hp.has("attention.key_length_mla");
    s.key_dim = hp.count(s.stores_latent ? "attention.key_length_mla" : "attention.key_length");
    const char* const value_key =
        s.stores_latent ? "attention.value_length_mla" : "attention.value_length";
    s.value_dim =
        value_dim > 0 ? hp.count(value_key, Hparams::kMaxSize, value_dim) : hp.count(value_key);
    return s;
}

// [n, h key]
Value project_queries(Step& step, Value x, const LatentWeights& w, const Norm& norm) {
    if (w.wq) return linear(x, step.weight(w.wq));
    const Value low = normalize(step, linear(x, step.weight(w.wq_a)), w.q_norm, norm);
    return linear(low, step.weight(w.wq_b));
}

// Checks the hyperparameters of the cache: either one key that all heads share, made of the latent
// vector and the rotated part, or keys and values for every head. Some files state the value length
// of a head in both cases.
void expect_sizes(const Hparams& hp, const LatentSizes& s, const AttentionSpec& spec, int layer) {
    const auto expect = [&](std::string_view suffix, int expected, int or_else) {
        const int stated = hp.per_layer(suffix, layer + 1, 0, Hparams::kMaxSize, expected).back();
        if (stated != expected && stated != or_else)
            hp.refuse(suffix, text("expected ", expected, ", got ", stated));
    };
    expect("attention.head_count_kv", spec.n_kv_heads, spec.n_kv_heads);
    expect("attention.key_length", spec.key_dim, spec.key_dim);
    expect("attention.value_length", s.stores_latent ? s.rank : s.value_dim, s.value_dim);
}

}  // namespace

LatentAttention read_latent_attention(const Hparams& hp, RopePairs pairs, int value_dim,
                                      int layer) {
    LatentAttention a{.sizes = read_sizes(hp, value_dim),
                      .rotation = {.rope = read_rope(hp, hp.count("rope.dimension_count"), pairs)}};
    if (a.plain_dim() < 1)
        hp.refuse("rope.dimension_count", text("expected less than the key size ", a.sizes.key_dim,
                                               ", got ", a.rotation.rope.n_rot));
    expect_sizes(hp, a.sizes, latent_attention_spec(a), layer);
    a.how.scale = 1.0f / std::sqrt(static_cast<float>(a.sizes.key_dim));
    a.temperature = read_temperature(hp);
    return a;
}

void scale_scores_by_yarn(const Hparams& hp, LatentAttention& a) {
    Rope& rope = a.rotation.rope;
    const double multiplier = hp.number("rope.scaling.yarn_log_multiplier", 0.0f);
    if (rope.extrapolation > 0.0 && multiplier != 0.0)
        rope.magnitude = hp.positive("rope.scaling.attn_factor", 1.0f);
    const double stretch = std::max(0.0, -std::log(rope.scale));
    const double m = rope.magnitude * (1.0 + multiplier * stretch);
    a.how.scale = static_cast<float>(m * m / std::sqrt(static_cast<double>(a.sizes.key_dim)));
}

AttentionSpec latent_attention_spec(const LatentAttention& a) {
    const LatentSizes& s = a.sizes;
    if (s.stores_latent)
        return {.n_kv_heads = 1,
                .key_dim = s.rank + a.rotation.rope.n_rot,
                .value_dim_in_key = s.rank,
                .shifts = a.rotates};
    return {.n_kv_heads = s.n_heads,
            .key_dim = s.key_dim,
            .value_dim = s.value_dim,
            .shifts = a.rotates};
}

LatentWeights read_latent_weights(const LayerWeights& w, int width, const LatentAttention& a) {
    const LatentSizes& s = a.sizes;
    const int64_t heads = s.n_heads;
    LatentWeights l;
    if (s.query_rank > 0) {
        l.wq_a = w.get("attn_q_a.weight", {s.query_rank, width});
        l.q_norm = read_norm(w, "attn_q_a_norm", s.query_rank);
        l.wq_b = w.get("attn_q_b.weight", {heads * s.key_dim, s.query_rank});
    } else {
        l.wq = w.get("attn_q.weight", {heads * s.key_dim, width});
    }
    l.wkv_a = w.get("attn_kv_a_mqa.weight", {s.rank + a.rotation.rope.n_rot, width});
    l.c_norm = read_norm(w, "attn_kv_a_norm", s.rank);
    if (s.stores_latent) {
        l.wk_b = w.get("attn_k_b.weight", {heads, s.rank, a.plain_dim()});
        l.wv_b = w.get("attn_v_b.weight", {heads, s.value_dim, s.rank});
    } else {
        l.wkv_b = w.get("attn_kv_b.weight", {heads * (a.plain_dim() + s.value_dim), s.rank});
    }
    l.wo = w.get("attn_output.weight", {width, heads * s.value_dim});
    return l;
}

Value latent_attention(Step& step, int layer, Value x, const LatentWeights& w,
                       const LatentAttention& a, const Norm& norm) {
    const LatentSizes& s = a.sizes;
    const int rot = a.rotation.rope.n_rot;
    const int plain = a.plain_dim();
    const auto rotate = [&](Value heads, Role role) {
        if (!a.rotates) return heads;
        const Weight& factors = a.rotation.factors_for(step.n_ctx());
        return step.name(step.rotate(heads, a.rotation.rope, factors), role, layer);
    };
    const Value q = split_heads(
        scale_queries(step, project_queries(step, x, w, norm), a.temperature), s.n_heads);
    const Value q_plain = slice(q, 0, plain);
    const Value q_rope = rotate(slice(q, plain, rot), Role::q_rope);
    const Value lk = linear(x, step.weight(w.wkv_a));
    const Value c = normalize(step, slice(lk, 0, s.rank), w.c_norm, norm);
    const Value k_rope = rotate(split_heads(slice(lk, s.rank, rot), 1), Role::k_rope);

    Value y;  // [n, h, value]
    if (s.stores_latent) {
        const Value q_latent = head_linear(q_plain, step.weight(w.wk_b));
        const Value sums = step.attend_latent(layer, concat(q_latent, q_rope),
                                              concat(split_heads(c, 1), k_rope), s.rank, a.how);
        y = step.name(head_linear(sums, step.weight(w.wv_b)), Role::attn_heads, layer);
    } else {
        const Value kv = split_heads(linear(c, step.weight(w.wkv_b)), s.n_heads);
        const Value k = concat(slice(kv, 0, plain), k_rope);
        y = step.attend(layer, concat(q_plain, q_rope), k, slice(kv, plain, s.value_dim), a.how);
    }
    return step.name(linear(merge_heads(y), step.weight(w.wo)), Role::attn_out, layer);
}

}  // namespace plait
