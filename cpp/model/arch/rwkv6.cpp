// RWKV-6 "Finch". Peng et al. 2024, arXiv:2404.05892. n = LayerNorm, s = previous token minus x.
//
//   m_i = W2_i tanh(W1 (x + s * m_x));  x_i = x + s * (m_i + l_i)            i: w, k, v, r, g
//   w = exp(-exp(w0 + D2 tanh(D1 x_w)));  y = wkv6(R x_r, K x_k, V x_v, w, u)
//   x += O (n_h(y) * silu(G x_g))                                                 time mix
//   x += sigmoid(R (x + s * l_r)) * (V relu(K (x + s * l_k))^2)                   channel mix
//
// where x on the right-hand sides stands for n(x). In some models, the residual stream is halved
// after every few layers. QRWKV6 ("rwkv6qwen2") has this time mix in the layers of Qwen2, with
// fewer heads of k and v, without n_h and u, and with sigmoid for silu:
//
//   y_t = S_t r_t / sqrt(d),  S_t = S_(t-1) diag(w_t) + v_t (k_t * (1 - w_t))^T
#include <cmath>
#include <string>

#include "base/text.h"
#include "model/blocks/rwkv.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr int kMixed = 5;  // w, k, v, r, g

struct TimeMixWeights {
    Weight mix_x, mix_down, mix_up;      // [width], [5 rank, width], [5, width, rank]
    Weight mix, mix_of[kMixed];          // [5 width], or [width] each
    Weight decay, decay_down, decay_up;  // [width], [rank, width], [width, rank]
    Weight r, k, v, g, out;              // [width, width]; k and v may have fewer rows
    Weight r_bias, k_bias, v_bias;       // optional
};

TimeMixWeights read_time_mix(const Hparams& hp, const LayerWeights& l, int width, int kv_width) {
    const int mix_rank = hp.count("time_mix_extra_dim", Hparams::kMaxSize / kMixed);
    const int decay_rank = hp.count("time_decay_extra_dim");
    TimeMixWeights w;
    w.mix_x = l.get("time_mix_lerp_x.weight", {width});
    w.mix_down = l.get("time_mix_w1.weight", {kMixed * mix_rank, width});
    w.mix_up = l.get("time_mix_w2.weight", {kMixed, width, mix_rank});
    if (l.has("time_mix_lerp_fused.weight")) {
        w.mix = l.get("time_mix_lerp_fused.weight", {kMixed, 1, 1, width});
    } else {
        const char* const names[kMixed] = {"w", "k", "v", "r", "g"};
        for (int m = 0; m < kMixed; ++m)
            w.mix_of[m] = l.get(std::string("time_mix_lerp_") + names[m] + ".weight", {width});
    }
    w.decay = l.get("time_mix_decay.weight", {width});
    w.decay_down = l.get("time_mix_decay_w1.weight", {decay_rank, width});
    w.decay_up = l.get("time_mix_decay_w2.weight", {width, decay_rank});
    w.r = l.get("time_mix_receptance.weight", {width, width});
    w.k = l.get("time_mix_key.weight", {kv_width, width});
    w.v = l.get("time_mix_value.weight", {kv_width, width});
    w.g = l.get("time_mix_gate.weight", {width, width});
    w.out = l.get("time_mix_output.weight", {width, width});
    w.r_bias = l.find("time_mix_receptance.bias", {width});
    w.k_bias = l.find("time_mix_key.bias", {kv_width});
    w.v_bias = l.find("time_mix_value.bias", {kv_width});
    return w;
}

// The inputs of a time mix: r, k, v, g and w of the formulas, [n, width].
struct TimeMix {
    Value r, k, v, g, decay;
};

TimeMix mix_tokens(Step& step, int i, Value x, const TimeMixWeights& w) {
    const int64_t width = x.shape()[1];
    const Value s = token_difference(step, i, x, kTimeShift);
    const Value low = linear(x + s * step.weight(w.mix_x), step.weight(w.mix_down));
    Value mix =
        head_linear(split_heads(activate(low, Activation::tanh), kMixed), step.weight(w.mix_up));
    if (w.mix) mix = mix + step.weight(w.mix);
    const auto mixed = [&](int m) {
        Value of = slice(merge_heads(mix), m * width, width);
        if (w.mix_of[m]) of = of + step.weight(w.mix_of[m]);
        return x + s * of;
    };
    const Value bent = activate(linear(mixed(0), step.weight(w.decay_down)), Activation::tanh);
    const Value d = linear(bent, step.weight(w.decay_up), step.weight(w.decay));
    return {.r = linear(mixed(3), step.weight(w.r), step.weight(w.r_bias)),
            .k = linear(mixed(1), step.weight(w.k), step.weight(w.k_bias)),
            .v = linear(mixed(2), step.weight(w.v), step.weight(w.v_bias)),
            .g = linear(mixed(4), step.weight(w.g)),
            .decay = activate(scale(activate(d, Activation::exp), -1.0f), Activation::exp)};
}

struct Rwkv6Layer {
    TimeMixWeights time_mix;
    NormWeights head_norm;
    Weight first;                            // [h, d]
    Weight mix_k, mix_r;                     // [width]
    Weight channel_k, channel_v, channel_r;  // [ffn, width], [width, ffn], [width, width]
};

class Rwkv6 final : public Decoder {
public:
    Rwkv6(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, rwkv_form(hp, w)),
          sizes_(read_rwkv_sizes(hp, info().width)),
          halve_every_(hp.index("rescale_every_n_layers", Hparams::kMaxLayers, 0)) {
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_layer(hp, LayerWeights(w, i)));
    }

protected:
    std::vector<StateSpec> layer_memory(int) const override { return {rwkv_spec(sizes_)}; }

    Value layer(Step& step, int i, Value x) const override {
        x = Decoder::layer(step, i, x);
        return halve_every_ > 0 && (i + 1) % halve_every_ == 0 ? scale(x, 0.5f) : x;
    }

    Value mixer(Step& step, int i, Value h) const override {
        return time_mix(step, i, h, layers_[static_cast<size_t>(i)]);
    }

    Value block(Step& step, int i, Value h) const override {
        return channel_mix(step, i, h, layers_[static_cast<size_t>(i)]);
    }

private:
    Rwkv6Layer read_layer(const Hparams& hp, const LayerWeights& l) const {
        const int width = info().width, n_ffn = hp.count("feed_forward_length");
        Rwkv6Layer w;
        w.time_mix = read_time_mix(hp, l, width, width);
        w.head_norm = read_norm(l, "time_mix_ln", width);
        w.first = l.get("time_mix_first.weight", {sizes_.heads, sizes_.head_dim});
        w.mix_k = l.get("channel_mix_lerp_k.weight", {width});
        w.mix_r = l.get("channel_mix_lerp_r.weight", {width});
        w.channel_k = l.get("channel_mix_key.weight", {n_ffn, width});
        w.channel_v = l.get("channel_mix_value.weight", {width, n_ffn});
        w.channel_r = l.get("channel_mix_receptance.weight", {width, width});
        return w;
    }

    Value time_mix(Step& step, int i, Value x, const Rwkv6Layer& w) const {
        const TimeMix of = mix_tokens(step, i, x, w.time_mix);
        const auto heads = [&](Value y) { return split_heads(y, sizes_.heads); };
        const Value y = wkv6({.r = heads(of.r),
                              .k = heads(of.k),
                              .v = heads(of.v),
                              .w = heads(of.decay),
                              .u = step.weight(w.first)},
                             step.states(i, 0, kTimeState));
        const Value normal = normalize_heads(step, step.name(y, Role::scan, i), w.head_norm);
        const Value gated = gate(of.g, normal, Activation::silu);
        return step.name(linear(gated, step.weight(w.time_mix.out)), Role::mixer_out, i);
    }

    Value channel_mix(Step& step, int i, Value x, const Rwkv6Layer& w) const {
        const Value s = token_difference(step, i, x, kChannelShift);
        const Value k = squared_relu(step, x + s * step.weight(w.mix_k), w.channel_k);
        const Value r = linear(x + s * step.weight(w.mix_r), step.weight(w.channel_r));
        const Value y = gate(r, linear(k, step.weight(w.channel_v)), Activation::sigmoid);
        return step.name(y, Role::ffn_out, i);
    }

    RwkvSizes sizes_;
    int halve_every_;
    std::vector<Rwkv6Layer> layers_;
};

class Rwkv6Qwen2 final : public Decoder {
public:
    Rwkv6Qwen2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, ModelForm(read_info(hp, w), Norm::rms(hp))),
          sizes_(read_rwkv_sizes(hp, info().width, 1)),
          kv_heads_(hp.index("attention.head_count_kv", sizes_.heads, 0)) {
        if (kv_heads_ == 0) kv_heads_ = sizes_.heads;
        if (sizes_.heads % kv_heads_ != 0)
            hp.refuse("attention.head_count_kv",
                      text(kv_heads_, " does not divide the ", sizes_.heads, " heads"));
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(
                read_time_mix(hp, LayerWeights(w, i), info().width, kv_heads_ * sizes_.head_dim));
    }

protected:
    std::vector<StateSpec> layer_memory(int) const override {
        const int64_t width = info().width;
        return {RecurrentSpec{.elements = {width, width * sizes_.head_dim}}};
    }

    Value mixer(Step& step, int i, Value h) const override {
        const TimeMixWeights& w = layers_[static_cast<size_t>(i)];
        const TimeMix of = mix_tokens(step, i, h, w);
        const Value decay = split_heads(of.decay, sizes_.heads);
        const Value k = all_heads(of.k) * scale(decay, -1.0f, 1.0f);
        const Value none = scale(decay, 0.0f);  // the update of RWKV-7 without its delta rule
        const float root = 1 / std::sqrt(static_cast<float>(sizes_.head_dim));
        const Value y = wkv7({.r = scale(split_heads(of.r, sizes_.heads), root),
                              .w = decay,
                              .k = k,
                              .v = all_heads(of.v),
                              .a = none,
                              .b = none},
                             step.states(i, 0, kMatrices));
        const Value gated =
            gate(of.g, merge_heads(step.name(y, Role::scan, i)), Activation::sigmoid);
        return step.name(linear(gated, step.weight(w.out)), Role::mixer_out, i);
    }

private:
    static constexpr int kMatrices = 1;  // the state after kTimeShift

    // Repeats each head for the heads of r that share it. [n, kv_heads * d] -> [n, heads, d]
    Value all_heads(Value x) const {
        const Value few = split_heads(x, kv_heads_);
        Value all = few;
        for (int i = 1; i < sizes_.heads / kv_heads_; ++i) all = concat(all, few);
        return split_heads(merge_heads(all), sizes_.heads);
    }

    RwkvSizes sizes_;
    int kv_heads_;
    std::vector<TimeMixWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_rwkv6(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Rwkv6>(hparams, weights);
}

std::unique_ptr<Model> make_rwkv6qwen2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Rwkv6Qwen2>(hparams, weights);
}

}  // namespace plait
