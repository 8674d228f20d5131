#include "model/blocks/delta_net.h"

#include <cmath>

#include "base/text.h"
#include "model/blocks/mamba.h"

namespace plait {
namespace {

enum State : int { kConv, kMatrix };  // kinds, in the order of the spec

DeltaNetSizes read_sizes(const Hparams& hp) {
    const SsmSizes ssm = read_grouped_ssm_sizes(hp);
    return {.kernel = ssm.kernel,
            .key_heads = ssm.groups,
            .heads = ssm.rank,
            .key_dim = ssm.state,
            .value_dim = ssm.inner / ssm.rank};
}

}  // namespace

std::vector<bool> read_recurrent_layers(const Hparams& hp, int n_layers) {
    if (hp.has("attention.recurrent_layers"))
        return hp.flags("attention.recurrent_layers", n_layers);
    const int every = hp.count("full_attention_interval", Hparams::kMaxSize, 4);
    std::vector<bool> recurrent(static_cast<size_t>(n_layers));
    for (int i = 0; i < n_layers; ++i) recurrent[static_cast<size_t>(i)] = (i + 1) % every != 0;
    return recurrent;
}

RecurrentSpec DeltaNetMixer::spec() const {
    const DeltaNetSizes& s = sizes_;
    return {.elements = {(s.kernel - 1) * (2 * s.keys() + s.values()), s.values() * s.key_dim}};
}

DeltaNetMixer::DeltaNetMixer(const Hparams& hp, const LayerWeights& w, int width)
    : sizes_(read_sizes(hp)) {
    const DeltaNetSizes& s = sizes_;
    const int64_t channels = 2 * s.keys() + s.values();
    if (w.has("ssm_in.weight")) {
        qkvz_ = w.get("ssm_in.weight", {channels + s.values(), width});
    } else {
        qkv_ = w.get("attn_qkv.weight", {channels, width});
        z_ = w.get("attn_gate.weight", {s.values(), width});
    }
    if (w.has("ssm_ba.weight")) {
        ba_ = w.get("ssm_ba.weight", {int64_t{2} * s.heads, width});
    } else {
        b_ = w.get("ssm_beta.weight", {s.heads, width});
        t_ = w.get("ssm_alpha.weight", {s.heads, width});
    }
    conv_ = w.get("ssm_conv1d.weight", {channels, s.kernel});
    dt_bias_ = w.get("ssm_dt.bias", {s.heads});
    a_ = w.get("ssm_a", {s.heads});
    norm_ = w.get("ssm_norm.weight", {s.value_dim});
    out_ = w.get("ssm_out.weight", {width, s.values()});
}

DeltaNetMixer::Projected DeltaNetMixer::project(Step& step, Value x) const {
    const DeltaNetSizes& s = sizes_;
    if (!qkvz_) return {linear(x, step.weight(qkv_)), linear(x, step.weight(z_))};
    const Value all = split_heads(linear(x, step.weight(qkvz_)), s.key_heads);
    const int64_t of_head = s.values() / s.key_heads;
    const Value q = merge_heads(slice(all, 0, s.key_dim));
    const Value k = merge_heads(slice(all, s.key_dim, s.key_dim));
    const Value v = merge_heads(slice(all, int64_t{2} * s.key_dim, of_head));
    return {concat(concat(q, k), v),
            merge_heads(slice(all, int64_t{2} * s.key_dim + of_head, of_head))};
}

DeltaNetMixer::Rates DeltaNetMixer::rates(Step& step, Value x) const {
    Value b, t;
    if (ba_) {
        const int64_t shared = sizes_.heads / sizes_.key_heads;
        const Value both = split_heads(linear(x, step.weight(ba_)), sizes_.key_heads);
        b = merge_heads(slice(both, 0, shared));
        t = merge_heads(slice(both, shared, shared));
    } else {
        b = linear(x, step.weight(b_));
        t = linear(x, step.weight(t_));
    }
    const Value dt = activate(t + step.weight(dt_bias_), Activation::softplus);
    return {.g = dt * step.weight(a_), .beta = activate(b, Activation::sigmoid)};
}

// Scales vectors to the given length. Divides by sqrt(sum(x^2) + epsilon), in Qwen3-Next by the
// larger of sqrt(sum(x^2)) and epsilon.
Value DeltaNetMixer::unit(Value x, float length, float epsilon) const {
    if (ba_) return length == 1.0f ? l2_norm(x, epsilon) : scale(l2_norm(x, epsilon), length);
    const auto n = static_cast<float>(sizes_.key_dim);
    return scale(rms_norm(x, {}, epsilon / n), length / std::sqrt(n));
}

Value DeltaNetMixer::operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const {
    const DeltaNetSizes& s = sizes_;
    const auto [qkv, z] = project(step, x);
    Value mixed = short_conv(qkv, step.weight(conv_), {}, step.states(layer, slot, kConv));
    mixed = activate(step.name(mixed, Role::conv, layer), Activation::silu);
    const Value q = split_heads(slice(mixed, 0, s.keys()), s.key_heads);
    const Value k = split_heads(slice(mixed, s.keys(), s.keys()), s.key_heads);
    const Value v = split_heads(slice(mixed, 2 * s.keys(), s.values()), s.heads);

    const auto [g, beta] = rates(step, x);
    const float q_scale = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
    const Value y = delta_rule({.q = unit(q, q_scale, norm.epsilon),
                                .k = unit(k, 1.0f, norm.epsilon),
                                .v = v,
                                .g = g,
                                .beta = beta,
                                .tiled = !ba_},
                               step.states(layer, slot, kMatrix));
    const Value normal =
        rms_norm(step.name(y, Role::scan, layer), step.weight(norm_), norm.epsilon);
    const Value gated = gate(z, merge_heads(normal), Activation::silu);
    return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
}

}  // namespace plait
