// RWKV-7 "Goose". Peng et al. 2025, arXiv:2503.14456. n = LayerNorm, s = previous token minus x.
//
//   x_i = x + s * l_i;  r = R x_r;  k' = K x_k;  v' = V x_v                i: r, w, k, v, a, g
//   w = exp(-e^-0.5 sigmoid(w0 + W2 tanh(W1 x_w)));  a = sigmoid(a0 + A2 A1 x_a)
//   v = v' + (v_first - v') * sigmoid(v0 + V2 V1 x_v)       v_first: v' of the first layer
//   c = k' * k_k, of unit length by head;  k = k' * (1 + (a - 1) * k_a)
//   y = n_h(wkv7(r, w, k, v, -c, c * a)) + v sum_h(r * k * r_k)
//   x += O (y * G2 sigmoid(G1 x_g))                                          time mix
//   x += V relu(K (x + s * l_k))^2                                           channel mix
//
// where x on the right-hand sides stands for n(x). Layers pass x and v_first to the next.
#include "model/blocks/rwkv.h"
#include "model/decoder.h"

namespace plait {
namespace {

enum Mixed : int { kR, kW, kK, kV, kA, kG };

// up f(down x) + bias, where f depends on the use: identity, tanh or sigmoid.
struct LowRank {
    Weight down, up, bias;  // [rank, width], [width, rank], [width]
};

struct Rwkv7Layer {
    NormWeights head_norm;
    Weight mix;                           // [5 or 6, width]
    Weight r, k, v, out;                  // [width, width]
    LowRank decay, rate, residual, gate;  // empty if the file has none; gate has no bias
    Weight k_k, k_a, r_k;                 // [width]
    Weight mix_k;                         // [width]
    Weight channel_k, channel_v;          // [ffn, width], [width, ffn]
};

ModelForm rwkv7_form(const Hparams& hp, const Weights& w) {
    ModelForm form = rwkv_form(hp, w);
    form.info.n_passed_parts = 2;
    return form;
}

class Rwkv7 final : public Decoder {
public:
    Rwkv7(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, rwkv7_form(hp, w)), sizes_(read_rwkv_sizes(hp, info().width)) {
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_layer(hp, LayerWeights(w, i), i));
    }

protected:
    std::vector<StateSpec> layer_memory(int) const override { return {rwkv_spec(sizes_)}; }

    Value layers(Step& step, Value x) const override {
        Value v_first = step.layers().has_first() ? Value{} : step.passed(info(), 1);
        for (const int i : step.layer_numbers(info().n_layers)) {
            const Rwkv7Layer& w = layers_[static_cast<size_t>(i)];
            const Value h = step.name(normalize(step, x, weights(i).mixer_in), Role::attn_norm, i);
            x = step.name(x + time_mix(step, i, h, w, v_first), Role::ffn_inp, i);
            const Value n = step.name(normalize(step, x, weights(i).block_in), Role::ffn_norm, i);
            x = step.name(x + channel_mix(step, i, n, w), Role::l_out, i);
        }
        return step.layers().has_last(info().n_layers) ? x : concat(x, v_first);
    }

private:
    LowRank read_low_rank(const LayerWeights& l, const std::string& name, int rank) const {
        const int width = info().width;
        return {l.get(name + "1.weight", {rank, width}), l.get(name + "2.weight", {width, rank}),
                l.find(name + "0.weight", {width})};
    }

    Rwkv7Layer read_layer(const Hparams& hp, const LayerWeights& l, int i) const {
        const int width = info().width;
        const int n_ffn = hp.count("feed_forward_length");
        const int gate_rank = hp.index("attention.gate_lora_rank", Hparams::kMaxSize, 0);
        const Shape square{width, width};
        Rwkv7Layer w;
        w.head_norm = read_norm(l, "time_mix_ln", width);
        const int n_mixed = gate_rank > 0 ? 6 : 5;
        w.mix = l.get("time_mix_lerp_fused.weight", {n_mixed, 1, 1, width});
        w.mix.type.shape = {n_mixed, width};
        w.r = l.get("time_mix_receptance.weight", square);
        w.k = l.get("time_mix_key.weight", square);
        w.v = l.get("time_mix_value.weight", square);
        w.out = l.get("time_mix_output.weight", square);
        w.decay = read_low_rank(l, "time_mix_w", hp.count("attention.decay_lora_rank"));
        const int rate_rank = hp.count("attention.iclr_lora_rank");
        w.rate = read_low_rank(l, "time_mix_a", rate_rank);
        const int value_rank = hp.count("attention.value_residual_mix_lora_rank");
        if (i > 0)
            w.residual = read_low_rank(l, "time_mix_v", value_rank);
        else if (l.has("time_mix_v1.weight"))  // unused; in layer 0 some files repeat the rate's
            w.residual = read_low_rank(l, "time_mix_v", rate_rank);
        if (gate_rank > 0) w.gate = read_low_rank(l, "time_mix_g", gate_rank);
        w.k_k = l.get("time_mix_k_k.weight", {width});
        w.k_a = l.get("time_mix_k_a.weight", {width});
        w.r_k = l.get("time_mix_r_k.weight", {width});
        w.mix_k = l.get("channel_mix_lerp_k.weight", {width});
        w.channel_k = l.get("channel_mix_key.weight", {n_ffn, width});
        w.channel_v = l.get("channel_mix_value.weight", {width, n_ffn});
        return w;
    }

    Value time_mix(Step& step, int i, Value x, const Rwkv7Layer& w, Value& v_first) const {
        constexpr float kLogMinDecay = -0.606531f;  // -e^-0.5
        const Value s = token_difference(step, i, x, kTimeShift);
        const auto mixed = [&](Mixed m) { return x + s * weight_row(step.weight(w.mix), m); };
        const auto heads = [&](Value y) { return split_heads(y, sizes_.heads); };
        const auto up = [&](Value low, const LowRank& of) {
            return linear(low, step.weight(of.up), step.weight(of.bias));
        };
        const auto down = [&](Mixed m, const LowRank& of) {
            return linear(mixed(m), step.weight(of.down));
        };
        const Value r = linear(mixed(kR), step.weight(w.r));
        const Value d = activate(up(activate(down(kW, w.decay), Activation::tanh), w.decay),
                                 Activation::sigmoid);
        const Value decay = activate(scale(d, kLogMinDecay), Activation::exp);
        const Value a = activate(up(down(kA, w.rate), w.rate), Activation::sigmoid);
        Value v = linear(mixed(kV), step.weight(w.v));
        if (!v_first)
            v_first = v;
        else
            v = v +
                (v_first - v) * activate(up(down(kV, w.residual), w.residual), Activation::sigmoid);
        Value k = linear(mixed(kK), step.weight(w.k));
        const Value c = l2_norm(heads(k * step.weight(w.k_k)), 1e-12f);
        k = k + scale(a, 1.0f, -1.0f) * (k * step.weight(w.k_a));
        const Value y = wkv7({.r = heads(r),
                              .w = heads(decay),
                              .k = heads(k),
                              .v = heads(v),
                              .a = scale(c, -1.0f),
                              .b = c * heads(a)},
                             step.states(i, 0, kTimeState));
        const Value normal = normalize_heads(step, step.name(y, Role::scan, i), w.head_norm);
        const Value weight = row_sum(heads(r * k * step.weight(w.r_k)));
        Value out = normal + merge_heads(heads(v) * weight);
        if (w.gate.up) out = out * up(activate(down(kG, w.gate), Activation::sigmoid), w.gate);
        return step.name(linear(out, step.weight(w.out)), Role::mixer_out, i);
    }

    Value channel_mix(Step& step, int i, Value x, const Rwkv7Layer& w) const {
        const Value s = token_difference(step, i, x, kChannelShift);
        const Value k = squared_relu(step, x + s * step.weight(w.mix_k), w.channel_k);
        return step.name(linear(k, step.weight(w.channel_v)), Role::ffn_out, i);
    }

    RwkvSizes sizes_;
    std::vector<Rwkv7Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_rwkv7(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Rwkv7>(hparams, weights);
}

}  // namespace plait
