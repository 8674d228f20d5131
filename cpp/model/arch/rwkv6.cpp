// RWKV-6 "Finch". Peng et al. 2024, arXiv:2404.05892. n = LayerNorm, s = previous token minus x.
//
//   m_i = W2_i tanh(W1 (x + s * m_x));  x_i = x + s * (m_i + l_i)            i: w, k, v, r, g
//   w = exp(-exp(w0 + D2 tanh(D1 x_w)));  y = wkv6(R x_r, K x_k, V x_v, w, u)
//   x += O (n_h(y) * silu(G x_g))                                                 time mix
//   x += sigmoid(R (x + s * l_r)) * (V relu(K (x + s * l_k))^2)                   channel mix
//
// where x on the right-hand sides stands for n(x). In some models, the residual stream is halved
// after every few layers.
#include "model/blocks/rwkv.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr int kMixed = 5;  // w, k, v, r, g

struct Rwkv6Layer {
    NormWeights head_norm;
    Weight mix_x, mix_down, mix_up;          // [width], [5 rank, width], [5, width, rank]
    Weight mix, mix_of[kMixed];              // [5 width], or [width] each
    Weight decay, decay_down, decay_up;      // [width], [rank, width], [width, rank]
    Weight first;                            // [h, d]
    Weight r, k, v, g, out;                  // [width, width]
    Weight mix_k, mix_r;                     // [width]
    Weight channel_k, channel_v, channel_r;  // [ffn, width], [width, ffn], [width, width]
};

class Rwkv6 final : public Decoder {
public:
    Rwkv6(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, rwkv_form(hp, w)),
          sizes_(read_rwkv_sizes(hp, info().width)),
          halve_every_(hp.index("rescale_every_n_layers", Hparams::kMaxLayers, 0)) {
        const int mix_rank = hp.count("time_mix_extra_dim", Hparams::kMaxSize / kMixed);
        const int decay_rank = hp.count("time_decay_extra_dim");
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_layer(LayerWeights(w, i), mix_rank, decay_rank, n_ffn));
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
    Rwkv6Layer read_layer(const LayerWeights& l, int mix_rank, int decay_rank, int n_ffn) const {
        const int width = info().width;
        const Shape square{width, width};
        Rwkv6Layer w;
        w.head_norm = read_norm(l, "time_mix_ln", width);
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
        w.first = l.get("time_mix_first.weight", {sizes_.heads, sizes_.head_dim});
        w.r = l.get("time_mix_receptance.weight", square);
        w.k = l.get("time_mix_key.weight", square);
        w.v = l.get("time_mix_value.weight", square);
        w.g = l.get("time_mix_gate.weight", square);
        w.out = l.get("time_mix_output.weight", square);
        w.mix_k = l.get("channel_mix_lerp_k.weight", {width});
        w.mix_r = l.get("channel_mix_lerp_r.weight", {width});
        w.channel_k = l.get("channel_mix_key.weight", {n_ffn, width});
        w.channel_v = l.get("channel_mix_value.weight", {width, n_ffn});
        w.channel_r = l.get("channel_mix_receptance.weight", square);
        return w;
    }

    Value time_mix(Step& step, int i, Value x, const Rwkv6Layer& w) const {
        const int64_t width = info().width;
        const Value s = token_difference(step, i, x, kTimeShift);
        const Value low = linear(x + s * step.weight(w.mix_x), step.weight(w.mix_down));
        Value mix = head_linear(split_heads(activate(low, Activation::tanh), kMixed),
                                step.weight(w.mix_up));
        if (w.mix) mix = mix + step.weight(w.mix);
        const auto mixed = [&](int m) {
            Value of = slice(merge_heads(mix), m * width, width);
            if (w.mix_of[m]) of = of + step.weight(w.mix_of[m]);
            return x + s * of;
        };
        const auto heads = [&](Value y) { return split_heads(y, sizes_.heads); };
        const Value bent = activate(linear(mixed(0), step.weight(w.decay_down)), Activation::tanh);
        const Value d = linear(bent, step.weight(w.decay_up), step.weight(w.decay));
        const Value decay = activate(scale(activate(d, Activation::exp), -1.0f), Activation::exp);
        const Value y = wkv6({.r = heads(linear(mixed(3), step.weight(w.r))),
                              .k = heads(linear(mixed(1), step.weight(w.k))),
                              .v = heads(linear(mixed(2), step.weight(w.v))),
                              .w = heads(decay),
                              .u = step.weight(w.first)},
                             step.states(i, 0, kTimeState));
        const Value normal = normalize_heads(step, step.name(y, Role::scan, i), w.head_norm);
        const Value g = linear(mixed(4), step.weight(w.g));
        return step.name(linear(gate(g, normal, Activation::silu), step.weight(w.out)),
                         Role::mixer_out, i);
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

}  // namespace

std::unique_ptr<Model> make_rwkv6(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Rwkv6>(hparams, weights);
}

}  // namespace plait
