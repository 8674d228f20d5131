// IBM's Granite models: LLaMA with multipliers of embeddings, scores, residuals and logits (muP,
// arXiv:2203.03466). n = RMSNorm.
#include "model/blocks/mamba.h"
#include "model/recurrent_decoder.h"

namespace plait {
namespace {

float read_multiplier(const Hparams& hp, std::string_view key) {
    const float stated = hp.number(key, 0.0f);  // 0: none
    return stated == 0.0f ? 1.0f : hp.positive(key);
}

void set_multipliers(ModelForm& form, const Hparams& hp) {
    form.scales_given_embeddings = true;
    form.embedding_scale = read_multiplier(hp, "embedding_scale");
    form.residual_scale = read_multiplier(hp, "residual_scale");
    form.logit_scale = 1.0f / read_multiplier(hp, "logit_scale");
}

// Models that were trained without positions have this key, false.
bool has_rotation(const Hparams& hp) { return hp.flag("rope.scaling.finetuned", true); }

}  // namespace

// Granite 3. IBM 2024, https://github.com/ibm-granite/granite-3.0-language-models.
//
//   x += r Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x += r Wdown (silu(Wgate n(x)) * Wup n(x))              SwiGLU
std::unique_ptr<Model> make_granite(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    hp.positive("logit_scale");  // required
    set_multipliers(form, hp);
    for (AttentionForm& layer : form.attention) {
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
        layer.rotates = has_rotation(hp);
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Granite 4. IBM 2025, https://huggingface.co/ibm-granite/granite-4.0-h-small: most layers have
// Mamba-2 in place of attention.
//
//   x += r Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))  or  r mamba2(n(x))
//   x += r f(n(x))       f: SwiGLU, or sum_e p_e f_e(n(x)) + f_shared(n(x))
std::unique_ptr<Model> make_granitehybrid(const Hparams& hp, const Weights& w) {
    const RopePairs pairs = has_rotation(hp) ? RopePairs::neighbours : RopePairs::none;
    ModelForm form = ModelForm::hybrid(hp, w, Norm::rms(hp), pairs);
    set_multipliers(form, hp);
    form.mixture = read_mixture(hp, /*required=*/false);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    form.mixture.n_shared_ffn = hp.index("expert_shared_feed_forward_length", Hparams::kMaxSize, 0);
    form.mixture.routing.renormalize = true;
    return std::make_unique<RecurrentDecoder<Mamba2Mixer>>(hp, w, std::move(form));
}

}  // namespace plait
