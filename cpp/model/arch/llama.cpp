// LLaMA and models that differ from it by a line or two. n = RMSNorm.
#include "model/decoder.h"

namespace plait {

// LLaMA. Touvron et al. 2023, arXiv:2302.13971; grouped-query attention: arXiv:2305.13245;
// experts as in Mixtral: Jiang et al. 2024, arXiv:2401.04088.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                  SwiGLU, or a mixture of them
std::unique_ptr<Model> make_llama(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    for (AttentionForm& layer : form.attention)
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    form.mixture = read_mixture(hp, /*required=*/false);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    form.mixture.routing.renormalize = true;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// SmolLM3. Hugging Face 2025, https://huggingface.co/blog/smollm3: LLaMA in which every fourth layer
// does not rotate (NoPE: arXiv:2501.18795).
std::unique_ptr<Model> make_smollm3(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    for (size_t i = 0; i < form.attention.size(); ++i) form.attention[i].rotates = (i + 1) % 4 != 0;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
