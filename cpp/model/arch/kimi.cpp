// Kimi Linear. Moonshot AI 2025, arXiv:2510.26692: most layers have Kimi Delta Attention, whose
// state has a decay per channel; the others have latent attention without rotation. The first
// layers are dense. n = RMSNorm.
//
//   x += kda(n(x))  or  x += latent_attention(n(x))
//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
#include <algorithm>
#include <cmath>
#include <optional>

#include "model/blocks/latent_attention.h"
#include "model/decoder.h"

namespace plait {
namespace {

//   q, k, v = silu(conv(Wq x)), silu(conv(Wk x)), silu(conv(Wv x)); q and k of unit length
//   w = exp(-A softplus(Wfb Wfa x + t)) in each channel;  b = sigmoid(Wb x) for each head
//   S = diag(w) S;  S += k^T b (v - k S);  y = q S / sqrt(d)
//   Wo (n(y) * sigmoid(Wgb Wga x))
class KimiDeltaAttention {
public:
    KimiDeltaAttention(const Hparams& hp, const LayerWeights& w, int width, int n_heads)
        : n_heads_(n_heads),
          head_dim_(hp.count("kda.head_dim")),
          taps_(hp.count("ssm.conv_kernel")) {
        if (taps_ < 2) hp.refuse("ssm.conv_kernel", "expected 2 or more, got 1");
        const int64_t all = channels();
        q_ = {w.get("attn_q.weight", {all, width}), w.get("ssm_conv1d_q.weight", {all, taps_})};
        k_ = {w.get("attn_k.weight", {all, width}), w.get("ssm_conv1d_k.weight", {all, taps_})};
        v_ = {w.get("attn_v.weight", {all, width}), w.get("ssm_conv1d_v.weight", {all, taps_})};
        decay_down_ = w.get("ssm_f_a.weight", {head_dim_, width});
        decay_up_ = w.get("ssm_f_b.weight", {all, head_dim_});
        decay_bias_ = w.get("ssm_dt.bias", {all});
        a_ = w.get("ssm_a", {n_heads_, 1});
        beta_ = w.get("ssm_beta.weight", {n_heads_, width});
        gate_down_ = w.get("ssm_g_a.weight", {head_dim_, width});
        gate_up_ = w.get("ssm_g_b.weight", {all, head_dim_});
        norm_ = w.get("ssm_norm.weight", {head_dim_});
        out_ = w.get("attn_output.weight", {width, all});
    }

    RecurrentSpec spec() const {
        const int64_t conv = (taps_ - 1) * channels();
        return {.elements = {conv, conv, conv, channels() * head_dim_}};
    }

    // The recurrence equals wkv7 of RWKV-7. With S transposed,
    //   S diag(w) + (v - S diag(w) k^T) b k  =  S diag(w) + (S a^T) b k + v^T b k,  a = -w k
    Value operator()(Step& step, int layer, Value x, const Norm& norm) const {
        const Value q = unit(projected(step, layer, kQ, x, q_), norm.epsilon);
        const Value k = unit(projected(step, layer, kK, x, k_), norm.epsilon);
        const Value v = projected(step, layer, kV, x, v_);
        const Value t = low_rank(step, x, decay_down_, decay_up_) + step.weight(decay_bias_);
        const Value dt = split_heads(activate(t, Activation::softplus), n_heads_);
        const Value w = activate(dt * step.weight(a_), Activation::exp);
        const Value beta = activate(linear(x, step.weight(beta_)), Activation::sigmoid);
        const Value k_beta = k * split_heads(beta, n_heads_);
        const float root = std::sqrt(static_cast<float>(head_dim_));
        const Value y = wkv7({.r = scale(q, 1.0f / root),
                              .w = w,
                              .k = k_beta,
                              .v = v,
                              .a = scale(w * k, -1.0f),
                              .b = k_beta},
                             step.states(layer, 0, kMatrix));
        const Value normal =
            rms_norm(step.name(y, Role::scan, layer), step.weight(norm_), norm.epsilon);
        const Value g = low_rank(step, x, gate_down_, gate_up_);
        const Value gated = gate(g, merge_heads(normal), Activation::sigmoid);
        return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
    }

private:
    enum State : int { kQ, kK, kV, kMatrix };  // kinds, in the order of the spec
    struct Projection {
        Weight weight, conv;  // [h d, width], [h d, taps]
    };

    int64_t channels() const { return int64_t{n_heads_} * head_dim_; }

    Value projected(Step& step, int layer, State state, Value x, const Projection& w) const {
        const Value y = short_conv(linear(x, step.weight(w.weight)), step.weight(w.conv), {},
                                   step.states(layer, 0, state));
        const Value heads = split_heads(activate(y, Activation::silu), n_heads_);
        return step.name(heads, Role::conv, layer);
    }

    // x / sqrt(sum(x^2) + epsilon)
    Value unit(Value x, float epsilon) const {
        const auto n = static_cast<float>(head_dim_);
        return scale(rms_norm(x, {}, epsilon / n), 1.0f / std::sqrt(n));
    }

    static Value low_rank(Step& step, Value x, const Weight& down, const Weight& up) {
        return linear(linear(x, step.weight(down)), step.weight(up));
    }

    int n_heads_, head_dim_, taps_;  // h, d
    Projection q_, k_, v_;
    Weight decay_down_, decay_up_, decay_bias_;  // [d, width], [h d, d], [h d]
    Weight a_;                                   // [h, 1], -A
    Weight beta_;                                // [h, width]
    Weight gate_down_, gate_up_;                 // [d, width], [h d, d]
    Weight norm_, out_;                          // [d], [width, h d]
};

ModelForm kimi_form(const Hparams& hp, const Weights& w) {
    ModelForm form(read_info(hp, w), Norm::rms(hp));
    form.mixture = read_shared_mixture(hp, form.info.n_layers,
                                       {.gating = Gating::sigmoid, .renormalize = true});
    return form;
}

class KimiLinear final : public Decoder {
public:
    KimiLinear(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, kimi_form(hp, w)), delta_(layers_of_model()), latent_(layers_of_model()) {
        const std::vector<int> n_kv =
            hp.per_layer("attention.head_count_kv", info().n_layers, 0, 1);
        const auto first = std::ranges::find(n_kv, 1);
        if (first != n_kv.end()) {
            attention_ = read_latent_attention(hp, RopePairs::neighbours, 0,
                                               static_cast<int>(first - n_kv.begin()));
            attention_.rotates = false;
        }
        const int n_heads = hp.count("attention.head_count");
        for (int i = 0; i < info().n_layers; ++i) {
            const auto at = static_cast<size_t>(i);
            const LayerWeights l(w, i);
            if (n_kv[at] == 0)
                delta_[at].emplace(hp, l, info().width, n_heads);
            else
                latent_[at] = read_latent_weights(l, info().width, attention_);
        }
    }

protected:
    std::vector<StateSpec> layer_memory(int i) const override {
        const auto& delta = delta_[static_cast<size_t>(i)];
        if (delta) return {delta->spec()};
        return {latent_attention_spec(attention_)};
    }

    Value mixer(Step& step, int i, Value h) const override {
        const auto at = static_cast<size_t>(i);
        if (delta_[at]) return (*delta_[at])(step, i, h, form_.norm);
        return latent_attention(step, i, h, latent_[at], attention_, form_.norm);
    }

private:
    size_t layers_of_model() const { return static_cast<size_t>(info().n_layers); }

    LatentAttention attention_;
    std::vector<std::optional<KimiDeltaAttention>> delta_;  // by layer
    std::vector<LatentWeights> latent_;                     // by layer
};

}  // namespace

std::unique_ptr<Model> make_kimi_linear(const Hparams& hp, const Weights& w) {
    return std::make_unique<KimiLinear>(hp, w);
}

}  // namespace plait
