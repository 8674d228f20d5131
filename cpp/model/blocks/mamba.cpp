#include "model/blocks/mamba.h"

#include "base/text.h"

namespace plait {
namespace {

enum State : int { kConv, kScan };  // kinds, in the order of the specs

int64_t conv_channels(const SsmSizes& sizes) {  // of Mamba-2: u, b and c
    return sizes.inner + int64_t{2} * sizes.groups * sizes.state;
}

// n values from `begin` on, which moves past them.
Value take(Value x, int64_t& begin, int64_t n) {
    begin += n;
    return slice(x, begin - n, n);
}

}  // namespace

SsmSizes read_ssm_sizes(const Hparams& hp) {
    SsmSizes sizes;
    sizes.kernel = hp.count("ssm.conv_kernel");
    sizes.inner = hp.count("ssm.inner_size");
    sizes.state = hp.count("ssm.state_size");
    sizes.rank = hp.count("ssm.time_step_rank");
    if (sizes.kernel < 2)
        hp.refuse("ssm.conv_kernel", text("expected 2 or more, got ", sizes.kernel));
    if (int64_t{sizes.inner} * sizes.state > INT32_MAX)
        hp.refuse("ssm.state_size",
                  text(sizes.state, " for each of ", sizes.inner, " channels is too large"));
    return sizes;
}

SsmSizes read_grouped_ssm_sizes(const Hparams& hp) {
    SsmSizes sizes = read_ssm_sizes(hp);
    sizes.groups = hp.count("ssm.group_count");
    if (sizes.inner % sizes.rank != 0)
        hp.refuse("ssm.time_step_rank",
                  text(sizes.rank, " heads do not divide the inner size ", sizes.inner));
    if (sizes.rank % sizes.groups != 0)
        hp.refuse("ssm.group_count",
                  text(sizes.groups, " groups do not divide the ", sizes.rank, " heads"));
    return sizes;
}

RecurrentSpec mamba_spec(const SsmSizes& sizes) {
    return {.elements = {(sizes.kernel - 1) * int64_t{sizes.inner},
                         int64_t{sizes.inner} * sizes.state}};
}

RecurrentSpec mamba2_spec(const SsmSizes& sizes) {
    return {.elements = {(sizes.kernel - 1) * conv_channels(sizes),
                         int64_t{sizes.inner} * sizes.state}};
}

MambaWeights read_mamba(const LayerWeights& w, const Hparams& hp, int width,
                        const SsmSizes& sizes) {
    const auto& [kernel, inner, state, rank, groups] = sizes;
    MambaWeights m;
    m.in = w.get("ssm_in.weight", {int64_t{2} * inner, width});
    m.conv = w.get("ssm_conv1d.weight", {inner, kernel});
    m.conv_bias = w.find("ssm_conv1d.bias", {inner});
    m.x = w.get("ssm_x.weight", {rank + int64_t{2} * state, inner});
    m.dt_norm = w.find("ssm_dt_norm.weight", {rank});
    m.b_norm = w.find("ssm_b_norm.weight", {state});
    m.c_norm = w.find("ssm_c_norm.weight", {state});
    m.normalizes = hp.flag("ssm.dt_b_c_rms", false) || (m.dt_norm && m.b_norm && m.c_norm);
    m.dt = w.get("ssm_dt.weight", {inner, rank});
    m.dt_bias = w.get("ssm_dt.bias", {inner});
    m.a = w.get("ssm_a", {inner, state});
    m.d = w.get("ssm_d", {inner});
    m.out = w.get("ssm_out.weight", {width, inner});
    return m;
}

Value mamba(Step& step, int layer, int slot, Value x, const MambaWeights& w, const SsmSizes& sizes,
            const Norm& norm) {
    const Value uz = linear(x, step.weight(w.in));
    const Value z = slice(uz, sizes.inner, sizes.inner);
    Value u = short_conv(slice(uz, 0, sizes.inner), step.weight(w.conv), step.weight(w.conv_bias),
                         step.states(layer, slot, kConv));
    u = activate(step.name(u, Role::conv, layer), Activation::silu);
    const Value rbc = linear(u, step.weight(w.x));
    Value r = slice(rbc, 0, sizes.rank);
    Value b = slice(rbc, sizes.rank, sizes.state);
    Value c = slice(rbc, int64_t{sizes.rank} + sizes.state, sizes.state);
    if (w.normalizes) {
        r = normalize(step, r, {w.dt_norm, {}}, norm);
        b = normalize(step, b, {w.b_norm, {}}, norm);
        c = normalize(step, c, {w.c_norm, {}}, norm);
    }
    const Value dt =
        activate(linear(r, step.weight(w.dt), step.weight(w.dt_bias)), Activation::softplus);
    const Value y = selective_scan(
        {.x = u, .dt = dt, .a = step.weight(w.a), .b = b, .c = c, .d = step.weight(w.d)},
        step.states(layer, slot, kScan));
    const Value gated = gate(z, step.name(y, Role::scan, layer), Activation::silu);
    return step.name(linear(gated, step.weight(w.out)), Role::mixer_out, layer);
}

Mamba2Weights read_mamba2(const LayerWeights& w, int width, const SsmSizes& sizes) {
    const int64_t channels = conv_channels(sizes);
    const int64_t heads = sizes.rank;
    Mamba2Weights m;
    m.in = w.get("ssm_in.weight", {sizes.inner + channels + heads, width});
    m.conv = w.get("ssm_conv1d.weight", {channels, sizes.kernel});
    m.conv_bias = w.find("ssm_conv1d.bias", {channels});
    m.dt_bias = w.get("ssm_dt.bias", {heads});
    m.a = w.get("ssm_a", {heads});
    m.d = w.get("ssm_d", {heads});
    m.norm = w.find("ssm_norm.weight", {sizes.groups, sizes.inner / sizes.groups});
    m.out = w.get("ssm_out.weight", {width, sizes.inner});
    return m;
}

Value mamba2(Step& step, int layer, int slot, Value x, const Mamba2Weights& w,
             const SsmSizes& sizes, const Norm& norm) {
    const int heads = sizes.rank;
    const int64_t shared = int64_t{sizes.groups} * sizes.state;  // elements of b, and of c
    const Value all = linear(x, step.weight(w.in));
    int64_t at = 0;
    const Value z = take(all, at, sizes.inner);
    Value ubc = take(all, at, conv_channels(sizes));
    const Value dt = activate(take(all, at, heads) + step.weight(w.dt_bias), Activation::softplus);
    ubc = short_conv(ubc, step.weight(w.conv), step.weight(w.conv_bias),
                     step.states(layer, slot, kConv));
    ubc = activate(step.name(ubc, Role::conv, layer), Activation::silu);
    at = 0;
    const Value u = split_heads(take(ubc, at, sizes.inner), heads);
    const Value b = split_heads(take(ubc, at, shared), sizes.groups);
    const Value c = split_heads(take(ubc, at, shared), sizes.groups);
    const Value y =
        ssd_scan({.x = u, .dt = dt, .a = step.weight(w.a), .d = step.weight(w.d), .b = b, .c = c},
                 step.states(layer, slot, kScan));
    Value gated = gate(z, merge_heads(step.name(y, Role::scan, layer)), Activation::silu);
    if (w.norm)
        gated = merge_heads(
            rms_norm(split_heads(gated, sizes.groups), step.weight(w.norm), norm.epsilon));
    return step.name(linear(gated, step.weight(w.out)), Role::mixer_out, layer);
}

}  // namespace plait
