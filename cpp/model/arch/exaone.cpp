// LG AI Research's EXAONE models: heads of q and k are normalised. If some layers have windows,
// only these layers rotate. n = RMSNorm.
#include <algorithm>

#include "model/decoder.h"

namespace plait {
namespace {

void set_windows(ModelForm& form, const Hparams& hp, int tokens_by_default) {
    form.set_windows(read_windows(hp, form.info.n_layers, 4, tokens_by_default));
    const bool has_windows = std::ranges::any_of(form.attention, is_windowed);
    for (AttentionForm& layer : form.attention) layer.rotates = !has_windows || is_windowed(layer);
}

}  // namespace

// EXAONE 4. LG AI Research 2025, arXiv:2507.11407: the outputs of mixer and block are normalised,
// not their inputs. Three of four layers of the large model have a window; the small one has none.
//
//   x += n(Wo attend(rope(n(Wq x)), rope(n(Wk x)), Wv x))
//   x += n(Wdown (silu(Wgate x) * Wup x))                     SwiGLU
std::unique_ptr<Model> make_exaone4(const Hparams& hp, const Weights& w) {
    // The first files of the 32B model have no key for its windows; the model is recognised by its
    // number of layers.
    constexpr int kLayersOf32B = 64, kWindowOf32B = 4096;
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.norms = kPostNorm;
    set_windows(form, hp, form.info.n_layers == kLayersOf32B ? kWindowOf32B : 0);
    for (AttentionForm& layer : form.attention)
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// K-EXAONE. LG AI Research 2026, https://huggingface.co/LGAI-EXAONE/K-EXAONE-236B-A23B: norms
// before mixer and block, and a mixture of experts whose first layers are dense.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_exaone_moe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    hp.count("attention.sliding_window", INT32_MAX);  // required
    set_windows(form, hp, 0);
    for (AttentionForm& layer : form.attention)
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.gating = Gating::sigmoid});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
