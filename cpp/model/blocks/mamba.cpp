#include "model/blocks/mamba.h"

#include "base/text.h"

namespace plait {
namespace {

enum State : int { kConv, kScan };  // kinds, in the order of the specs

int64_t conv_channels(const SsmSizes& sizes) {  // of Mamba-2: u, b and c
    return sizes.inner + int64_t{2} * sizes.groups * sizes.state;
}

// Returns n columns from `begin` on and advances `begin` past them.
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

SsmSizes read_headed_ssm_sizes(const Hparams& hp) {
    const SsmSizes sizes = read_ssm_sizes(hp);
    if (sizes.inner % sizes.rank != 0)
        hp.refuse("ssm.time_step_rank",
                  text(sizes.rank, " heads do not divide the inner size ", sizes.inner));
    return sizes;
}

SsmSizes read_grouped_ssm_sizes(const Hparams& hp) {
    SsmSizes sizes = read_headed_ssm_sizes(hp);
    sizes.groups = hp.count("ssm.group_count");
    if (sizes.rank % sizes.groups != 0)
        hp.refuse("ssm.group_count",
                  text(sizes.groups, " groups do not divide the ", sizes.rank, " heads"));
    return sizes;
}

MambaMixer::MambaMixer(const Hparams& hp, const LayerWeights& w, int width)
    : sizes_(read_ssm_sizes(hp)) {
    const auto& [kernel, inner, state, rank, groups] = sizes_;
    in_ = w.get("ssm_in.weight", {int64_t{2} * inner, width});
    conv_ = w.get("ssm_conv1d.weight", {inner, kernel});
    conv_bias_ = w.find("ssm_conv1d.bias", {inner});
    x_ = w.get("ssm_x.weight", {rank + int64_t{2} * state, inner});
    dt_norm_ = w.find("ssm_dt_norm.weight", {rank});
    b_norm_ = w.find("ssm_b_norm.weight", {state});
    c_norm_ = w.find("ssm_c_norm.weight", {state});
    normalizes_ = hp.flag("ssm.dt_b_c_rms", false) || (dt_norm_ && b_norm_ && c_norm_);
    dt_ = w.get("ssm_dt.weight", {inner, rank});
    dt_bias_ = w.get("ssm_dt.bias", {inner});
    a_ = w.get("ssm_a", {inner, state});
    d_ = w.get("ssm_d", {inner});
    out_ = w.get("ssm_out.weight", {width, inner});
}

RecurrentSpec MambaMixer::spec() const {
    return {.elements = {(sizes_.kernel - 1) * int64_t{sizes_.inner},
                         int64_t{sizes_.inner} * sizes_.state}};
}

Value MambaMixer::operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const {
    const Value uz = linear(x, step.weight(in_));
    const Value z = slice(uz, sizes_.inner, sizes_.inner);
    Value u = short_conv(slice(uz, 0, sizes_.inner), step.weight(conv_), step.weight(conv_bias_),
                         step.states(layer, slot, kConv));
    u = activate(step.name(u, Role::conv, layer), Activation::silu);
    const Value rbc = linear(u, step.weight(x_));
    Value r = slice(rbc, 0, sizes_.rank);
    Value b = slice(rbc, sizes_.rank, sizes_.state);
    Value c = slice(rbc, int64_t{sizes_.rank} + sizes_.state, sizes_.state);
    if (normalizes_) {
        r = normalize(step, r, {dt_norm_, {}}, norm);
        b = normalize(step, b, {b_norm_, {}}, norm);
        c = normalize(step, c, {c_norm_, {}}, norm);
    }
    const Value dt =
        activate(linear(r, step.weight(dt_), step.weight(dt_bias_)), Activation::softplus);
    const Value y = selective_scan(
        {.x = u, .dt = dt, .a = step.weight(a_), .b = b, .c = c, .d = step.weight(d_)},
        step.states(layer, slot, kScan));
    const Value gated = gate(z, step.name(y, Role::scan, layer), Activation::silu);
    return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
}

Mamba2Mixer::Mamba2Mixer(const Hparams& hp, const LayerWeights& w, int width)
    : sizes_(read_grouped_ssm_sizes(hp)) {
    const int64_t channels = conv_channels(sizes_);
    const int64_t heads = sizes_.rank;
    in_ = w.get("ssm_in.weight", {sizes_.inner + channels + heads, width});
    conv_ = w.get("ssm_conv1d.weight", {channels, sizes_.kernel});
    conv_bias_ = w.find("ssm_conv1d.bias", {channels});
    dt_bias_ = w.get("ssm_dt.bias", {heads});
    a_ = w.get("ssm_a", {heads});
    d_ = w.get("ssm_d", {heads});
    norm_ = w.find("ssm_norm.weight", {sizes_.groups, sizes_.inner / sizes_.groups});
    out_ = w.get("ssm_out.weight", {width, sizes_.inner});
}

RecurrentSpec Mamba2Mixer::spec() const {
    return {.elements = {(sizes_.kernel - 1) * conv_channels(sizes_),
                         int64_t{sizes_.inner} * sizes_.state}};
}

Value Mamba2Mixer::operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const {
    const int heads = sizes_.rank;
    const int64_t shared = int64_t{sizes_.groups} * sizes_.state;  // elements of b, and also of c
    const Value all = linear(x, step.weight(in_));
    int64_t at = 0;
    const Value z = take(all, at, sizes_.inner);
    Value ubc = take(all, at, conv_channels(sizes_));
    const Value dt = activate(take(all, at, heads) + step.weight(dt_bias_), Activation::softplus);
    ubc = short_conv(ubc, step.weight(conv_), step.weight(conv_bias_),
                     step.states(layer, slot, kConv));
    ubc = activate(step.name(ubc, Role::conv, layer), Activation::silu);
    at = 0;
    const Value u = split_heads(take(ubc, at, sizes_.inner), heads);
    const Value b = split_heads(take(ubc, at, shared), sizes_.groups);
    const Value c = split_heads(take(ubc, at, shared), sizes_.groups);
    const Value y =
        ssd_scan({.x = u, .dt = dt, .a = step.weight(a_), .d = step.weight(d_), .b = b, .c = c},
                 step.states(layer, slot, kScan));
    Value gated = gate(z, merge_heads(step.name(y, Role::scan, layer)), Activation::silu);
    if (norm_)
        gated = merge_heads(
            rms_norm(split_heads(gated, sizes_.groups), step.weight(norm_), norm.epsilon));
    return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
}

}  // namespace plait
