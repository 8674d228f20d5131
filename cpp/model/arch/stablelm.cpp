// StableLM. Bellagente et al. 2024, arXiv:2402.17834: LLaMA with LayerNorm and rotation of a part of
// each head. StableLM 2 12B normalises each head of q and k with its own weight and has no second
// norm: its feed-forward stands beside the attention.
//
//   h  = n1(x)                                                        n1, n2 = LayerNorm
//   x += Wo attend(rope(n(Wq h)), rope(n(Wk h)), Wv h)
//   x += Wdown (silu(Wgate g) * Wup g)                                g = n2(x); 12B: h
#include "model/decoder.h"

namespace plait {

std::unique_ptr<Model> make_stablelm(const Hparams& hp, const Weights& w) {
    const bool normalizes = w.has("blk.0.attn_q_norm.weight");
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves,
                   {.qk_norm = normalizes ? QkNorm::per_head : QkNorm::none});
    if (!w.has("blk.0.ffn_norm.weight")) {
        form.norms = {.mixer_in = "attn_norm"};
        form.parallel = true;
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
