// EXAONE 4. LG AI Research 2025, arXiv:2507.11407: the outputs of mixer and block are normalised, not
// their inputs, and so are heads of q and k. In the large model three layers have a window, and the
// fourth has neither a window nor rotation; the small model rotates everywhere.
//
//   x += n(Wo attend(rope(n(Wq x)), rope(n(Wk x)), Wv x))     n = RMSNorm
//   x += n(Wdown (silu(Wgate x) * Wup x))                     SwiGLU
#include <algorithm>

#include "model/decoder.h"

namespace plait {

std::unique_ptr<Model> make_exaone4(const Hparams& hp, const Weights& w) {
    // The first files of the 32B model have no key for its windows; its layers identify it.
    constexpr int kLayersOf32B = 64, kWindowOf32B = 4096;
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.norms = kPostNorm;
    const int tokens = form.info.n_layers == kLayersOf32B ? kWindowOf32B : 0;
    form.set_windows(read_windows(hp, form.info.n_layers, 4, tokens));
    const bool has_windows = std::ranges::any_of(form.attention, is_windowed);
    for (AttentionForm& layer : form.attention) {
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
        layer.rotates = !has_windows || is_windowed(layer);
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
