// IBM's Granite models: LLaMA with multipliers for embeddings, scores, residuals and logits (muP,
// arXiv:2203.03466). n = RMSNorm.
#include <cmath>

#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

float read_multiplier(const Hparams& hp, std::string_view key, float otherwise = 1.0f) {
    const float stated = hp.number(key, 0.0f);  // 0: none
    return stated == 0.0f ? otherwise : hp.positive(key);
}

void set_multipliers(ModelForm& form, const Hparams& hp) {
    form.scales_given_embeddings = true;
    form.embedding_scale = read_multiplier(hp, "embedding_scale");
    form.residual_scale = read_multiplier(hp, "residual_scale");
    form.logit_scale = 1.0f / read_multiplier(hp, "logit_scale");
}

// The key is false in models that were trained without positions.
bool has_rotation(const Hparams& hp) { return hp.flag("rope.scaling.finetuned", true); }

ModelForm granite_form(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    hp.positive("logit_scale");  // required
    set_multipliers(form, hp);
    for (AttentionForm& layer : form.attention) {
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
        layer.rotates = has_rotation(hp);
    }
    return form;
}

void set_mixture(ModelForm& form, const Hparams& hp) {
    form.mixture = read_llama_mixture(hp);
    form.mixture.n_shared_ffn = hp.index("expert_shared_feed_forward_length", Hparams::kMaxSize, 0);
}

}  // namespace

// Granite 3. IBM 2024, https://github.com/ibm-granite/granite-3.0-language-models.
//
//   x += r Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x += r Wdown (silu(Wgate n(x)) * Wup n(x))              SwiGLU
std::unique_ptr<Model> make_granite(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, granite_form(hp, w));
}

// Granite 3 MoE. IBM 2024: experts, in some models with an additional shared expert.
//
//   x += r (sum_e p_e f_e(n(x)) + f_shared(n(x)))
//   e: the largest of p = softmax(Wrouter n(x)); the chosen sum to 1
std::unique_ptr<Model> make_granitemoe(const Hparams& hp, const Weights& w) {
    ModelForm form = granite_form(hp, w);
    set_mixture(form, hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// MiniCPM. Hu et al. 2024, arXiv:2404.06395: the same multipliers. The files of the first models
// have no keys for them.
std::unique_ptr<Model> make_minicpm(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    form.scales_given_embeddings = true;
    form.embedding_scale = read_multiplier(hp, "embedding_scale", 12.0f);
    form.residual_scale = read_multiplier(hp, "residual_scale",
                                          1.4f / std::sqrt(static_cast<float>(form.info.n_layers)));
    form.logit_scale =
        1.0f / read_multiplier(hp, "logit_scale", static_cast<float>(form.info.width) / 256.0f);
    for (AttentionForm& layer : form.attention) {
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
        read_long_rope_factors(w, layer.rotation);
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Granite 4. IBM 2025, https://huggingface.co/ibm-granite/granite-4.0-h-small: most layers have
// Mamba-2 instead of attention.
//
//   x += r Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))  or  r mamba2(n(x))
//   x += r f(n(x))       f: SwiGLU, or sum_e p_e f_e(n(x)) + f_shared(n(x))
std::unique_ptr<Model> make_granitehybrid(const Hparams& hp, const Weights& w) {
    const RopePairs pairs = has_rotation(hp) ? RopePairs::neighbours : RopePairs::none;
    ModelForm form = ModelForm::hybrid(hp, w, Norm::rms(hp), pairs);
    set_multipliers(form, hp);
    set_mixture(form, hp);
    return std::make_unique<RecurrentDecoder<Mamba2Mixer>>(hp, w, std::move(form));
}

}  // namespace plait
