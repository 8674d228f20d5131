// Ai2's OLMo models. From OLMo 2 on, the concatenated heads of q and of k are normalised, and n =
// RMSNorm.
#include "model/decoder.h"

namespace plait {

// OLMo. Groeneveld et al. 2024, arXiv:2402.00838: n = LayerNorm without weights, and the elements
// of q, k and v are clamped.
//
//   x += Wo attend(rope(clamp(Wq n(x))), rope(clamp(Wk n(x))), clamp(Wv n(x)))
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                  SwiGLU
std::unique_ptr<Model> make_olmo(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::neighbours);
    form.norm.has_weights = false;
    for (AttentionForm& layer : form.attention) layer.clamp = read_clamp(hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// OLMo 2. Walsh et al. 2024, arXiv:2501.00656: the outputs of mixer and block are normalised, not
// their inputs. OLMo 3, arXiv:2512.13961, has the same form, but three of four layers have a window
// and unscaled positions.
//
//   x += n(Wo attend(rope(n(Wq x)), rope(n(Wk x)), Wv x))
//   x += n(Wdown (silu(Wgate x) * Wup x))                     SwiGLU
std::unique_ptr<Model> make_olmo2(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::whole});
    form.norms = kPostNorm;
    form.set_windows(read_windows(hp, form.info.n_layers, 4));
    for (AttentionForm& layer : form.attention) {
        if (!is_windowed(layer)) continue;
        Rope& rope = layer.rotation.rope;
        rope = without_scaling(rope);
        rope.base = hp.positive("rope.freq_base_swa", static_cast<float>(rope.base));
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// OLMoE. Muennighoff et al. 2024, arXiv:2409.02060: many small experts; the weights of the chosen
// ones are not normalised.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += sum_e p_e Wdown_e (silu(Wgate_e n(x)) * Wup_e n(x))
//                                         e: the largest of p = softmax(Wrouter n(x))
std::unique_ptr<Model> make_olmoe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::whole});
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
