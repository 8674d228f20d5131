#include "model/blocks/delta_net.h"

#include <cmath>

#include "base/text.h"
#include "model/blocks/mamba.h"

namespace plait {
namespace {

enum State : int { kConv, kMatrix };  // kinds, in the order of the spec

struct Projected {
    Value qkv;  // [n, 2 keys + values]
    Value z;    // [n, values]
};

Projected project(Step& step, Value x, const DeltaNetWeights& w, const DeltaNetSizes& s) {
    if (!w.qkvz) return {linear(x, step.weight(w.qkv)), linear(x, step.weight(w.z))};
    const Value all = split_heads(linear(x, step.weight(w.qkvz)), s.key_heads);
    const int64_t of_head = s.values() / s.key_heads;
    const Value q = merge_heads(slice(all, 0, s.key_dim));
    const Value k = merge_heads(slice(all, s.key_dim, s.key_dim));
    const Value v = merge_heads(slice(all, int64_t{2} * s.key_dim, of_head));
    return {concat(concat(q, k), v),
            merge_heads(slice(all, int64_t{2} * s.key_dim + of_head, of_head))};
}

}  // namespace

DeltaNetSizes read_delta_net_sizes(const Hparams& hp) {
    const SsmSizes ssm = read_grouped_ssm_sizes(hp);
    return {.kernel = ssm.kernel,
            .key_heads = ssm.groups,
            .heads = ssm.rank,
            .key_dim = ssm.state,
            .value_dim = ssm.inner / ssm.rank};
}

RecurrentSpec delta_net_spec(const DeltaNetSizes& s) {
    return {.elements = {(s.kernel - 1) * (2 * s.keys() + s.values()), s.values() * s.key_dim}};
}

DeltaNetWeights read_delta_net(const LayerWeights& w, int width, const DeltaNetSizes& s) {
    const int64_t channels = 2 * s.keys() + s.values();
    DeltaNetWeights d;
    if (w.has("ssm_in.weight")) {
        d.qkvz = w.get("ssm_in.weight", {channels + s.values(), width});
    } else {
        d.qkv = w.get("attn_qkv.weight", {channels, width});
        d.z = w.get("attn_gate.weight", {s.values(), width});
    }
    d.ba = w.get("ssm_ba.weight", {int64_t{2} * s.heads, width});
    d.conv = w.get("ssm_conv1d.weight", {channels, s.kernel});
    d.dt_bias = w.get("ssm_dt.bias", {s.heads});
    d.a = w.get("ssm_a", {s.heads});
    d.norm = w.get("ssm_norm.weight", {s.value_dim});
    d.out = w.get("ssm_out.weight", {width, s.values()});
    return d;
}

Value delta_net(Step& step, int layer, int slot, Value x, const DeltaNetWeights& w,
                const DeltaNetSizes& s, const Norm& norm) {
    const auto [qkv, z] = project(step, x, w, s);
    Value mixed = short_conv(qkv, step.weight(w.conv), {}, step.states(layer, slot, kConv));
    mixed = activate(step.name(mixed, Role::conv, layer), Activation::silu);
    const Value q = split_heads(slice(mixed, 0, s.keys()), s.key_heads);
    const Value k = split_heads(slice(mixed, s.keys(), s.keys()), s.key_heads);
    const Value v = split_heads(slice(mixed, 2 * s.keys(), s.values()), s.heads);

    const int64_t shared = s.heads / s.key_heads;
    const Value ba = split_heads(linear(x, step.weight(w.ba)), s.key_heads);
    const Value beta = activate(merge_heads(slice(ba, 0, shared)), Activation::sigmoid);
    const Value t = merge_heads(slice(ba, shared, shared)) + step.weight(w.dt_bias);
    const Value g = activate(t, Activation::softplus) * step.weight(w.a);

    const float q_scale = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
    const Value y = delta_rule({.q = scale(l2_norm(q, norm.epsilon), q_scale),
                                .k = l2_norm(k, norm.epsilon),
                                .v = v,
                                .g = g,
                                .beta = beta},
                               step.states(layer, slot, kMatrix));
    const Value normal =
        rms_norm(step.name(y, Role::scan, layer), step.weight(w.norm), norm.epsilon);
    const Value gated = gate(z, merge_heads(normal), Activation::silu);
    return step.name(linear(gated, step.weight(w.out)), Role::mixer_out, layer);
}

}  // namespace plait
