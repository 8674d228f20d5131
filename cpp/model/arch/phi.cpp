// The Phi models.
#include "model/decoder.h"

namespace plait {

// Phi-2. Li et al. 2023, arXiv:2309.05463: a part of each head is rotated, attention and
// feed-forward block are parallel, and all products have biases.
//
//   h  = n(x)                                                              n = LayerNorm
//   x += Wo attend(rope(Wq h + bq), rope(Wk h + bk), Wv h + bv) + bo
//      + Wdown gelu(Wup h + bup) + bdown
std::unique_ptr<Model> make_phi2(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves);
    form.norms = {.mixer_in = "attn_norm"};
    form.parallel = true;
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu_tanh;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Phi-3. Abdin et al. 2024, arXiv:2404.14219: LLaMA with one matrix for q, k and v, and one for
// gate and up. LongRoPE, arXiv:2402.13753: the divisors of the rotary frequencies depend on whether
// the context is longer than the original one.
//
//   x += Wo attend(rope(q), rope(k), v),  [q, k, v] = Wqkv n(x)      n = RMSNorm
//   x += Wdown (silu(g) * u),  [g, u] = Wup n(x)                     SwiGLU
std::unique_ptr<Model> make_phi3(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves);
    form.feed_forward = FeedForward::gate_in_up;
    form.set_windows(read_windows(hp, form.info.n_layers, 0));
    for (AttentionForm& layer : form.attention) read_long_rope_factors(w, layer.rotation);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
