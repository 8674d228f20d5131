// PLaMo 2. Preferred Networks 2025, https://huggingface.co/pfnet/plamo-2-1b and its
// modeling_plamo.py: Mamba-2 layers whose b, c and dt are projections of the convolved input, as in
// the first Mamba. n = RMSNorm.
#include <algorithm>

#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

enum State : int { kConv, kScan };  // kinds, in the order of the specs

//   z, u = Win x by head;  u = silu(conv(u));  b, c, r = Wx u;  dt = softplus(Wdt n(r) + bias)
//   Wout (silu(z) * scan(u, dt, a, n(b), n(c), d))
class PlamoMixer {
public:
    PlamoMixer(const Hparams& hp, const LayerWeights& w, int width)
        : sizes_(read_headed_ssm_sizes(hp)), rank_(std::max(64, width / 16)) {
        const int64_t heads = sizes_.rank;
        in_ = w.get("ssm_in.weight", {int64_t{2} * sizes_.inner, width});
        conv_ = w.get("ssm_conv1d.weight", {sizes_.inner, sizes_.kernel});
        x_ = w.get("ssm_x.weight", {rank_ + int64_t{2} * sizes_.state, sizes_.inner});
        b_norm_ = read_norm(w, "ssm_b_norm", sizes_.state);
        c_norm_ = read_norm(w, "ssm_c_norm", sizes_.state);
        dt_norm_ = read_norm(w, "ssm_dt_norm", rank_);
        dt_ = w.get("ssm_dt.weight", {heads, rank_});
        dt_bias_ = w.get("ssm_dt.bias", {heads});
        a_ = w.get("ssm_a", {heads});
        d_ = w.get("ssm_d", {heads});
        out_ = w.get("ssm_out.weight", {width, sizes_.inner});
    }

    RecurrentSpec spec() const {
        return {.elements = {(sizes_.kernel - 1) * int64_t{sizes_.inner},
                             int64_t{sizes_.inner} * sizes_.state}};
    }

    Value operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const {
        const int heads = sizes_.rank;
        const int head_dim = sizes_.inner / heads;
        const Value zu = split_heads(linear(x, step.weight(in_)), heads);
        const Value z = merge_heads(slice(zu, 0, head_dim));
        Value u = short_conv(merge_heads(slice(zu, head_dim, head_dim)), step.weight(conv_), {},
                             step.states(layer, slot, kConv));
        u = activate(step.name(u, Role::conv, layer), Activation::silu);
        const Value bcr = linear(u, step.weight(x_));
        const Value b = normalize(step, slice(bcr, 0, sizes_.state), b_norm_, norm);
        const Value c = normalize(step, slice(bcr, sizes_.state, sizes_.state), c_norm_, norm);
        const Value r =
            normalize(step, slice(bcr, int64_t{2} * sizes_.state, rank_), dt_norm_, norm);
        const Value dt =
            activate(linear(r, step.weight(dt_), step.weight(dt_bias_)), Activation::softplus);
        const Value y = ssd_scan({.x = split_heads(u, heads),
                                  .dt = dt,
                                  .a = step.weight(a_),
                                  .d = step.weight(d_),
                                  .b = split_heads(b, 1),
                                  .c = split_heads(c, 1)},
                                 step.states(layer, slot, kScan));
        const Value gated = gate(z, merge_heads(step.name(y, Role::scan, layer)), Activation::silu);
        return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
    }

private:
    SsmSizes sizes_;
    int rank_ = 0;                           // of dt; files do not state it
    Weight in_;                              // [2 inner, width]; z and u of each head
    Weight conv_;                            // [inner, kernel]
    Weight x_;                               // [2 state + rank, inner]
    NormWeights b_norm_, c_norm_, dt_norm_;  // [state], [state], [rank]
    Weight dt_, dt_bias_;                    // [heads, rank], [heads]
    Weight a_, d_;                           // [heads], a negative
    Weight out_;                             // [width, inner]
};

}  // namespace

// The windows of the attention layers in modeling_plamo.py, 2,048 tokens, are not stored in files.
//
//   x += n(mixer(n(x)))      attention with a matrix for q, k and v and normalised heads, or Mamba
//   x += n(Wdown (silu(g) * u)),  [g, u] = Wup n(x)                           SwiGLU
std::unique_ptr<Model> make_plamo2(const Hparams& hp, const Weights& w) {
    ModelForm form =
        ModelForm::hybrid(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::per_head});
    form.norms = kSandwich;
    form.feed_forward = FeedForward::gate_in_up;
    return std::make_unique<RecurrentDecoder<PlamoMixer>>(hp, w, std::move(form));
}

}  // namespace plait
