// The Gemma models. n = RMSNorm with weights 1 + w in the papers; files store 1 + w.
#include <cmath>

#include "model/decoder.h"
#include "model/encoder.h"

namespace plait {
namespace {

// Embeddings are multiplied by the square root of the width, and the gate is a GELU.
ModelForm gemma_form(ModelInfo info, const Hparams& hp, const AttentionForm& attention = {}) {
    ModelForm form(std::move(info), hp, Norm::rms(hp), RopePairs::halves, attention);
    form.embedding_scale = std::sqrt(static_cast<float>(form.info.width));
    form.activation = Activation::gelu_tanh;
    return form;
}

// The 27B models of Gemma 2 and 3 divide scores by sqrt(width / heads), the others by sqrt(head
// size). No GGUF key states this; as in llama.cpp, the 27B models are recognised by their number of
// layers.
void set_score_scale(ModelForm& form, const Hparams& hp, int n_layers_of_27b) {
    if (form.info.n_layers != n_layers_of_27b) return;
    for (AttentionForm& layer : form.attention)
        layer.how.scale = read_attention_scale(hp, form.info.width / layer.heads.n_heads);
}

// Five of six layers have a window and a rotation base of their own. Only the sixth scales
// positions.
ModelForm gemma3_form(ModelInfo info, const Hparams& hp, const AttentionForm& attention) {
    ModelForm form = gemma_form(std::move(info), hp, attention);
    form.norms = kSandwich;
    form.set_windows(read_windows(hp, form.info.n_layers, 6));
    for (AttentionForm& layer : form.attention) {
        Rope& rope = layer.rotation.rope;
        if (is_windowed(layer)) rope = read_windowed_gemma_rope(hp, rope);
    }
    return form;
}

}  // namespace

// Gemma. Gemma Team 2024, arXiv:2403.08295.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x += Wdown (gelu(Wgate n(x)) * Wup n(x))                  GeGLU
std::unique_ptr<Model> make_gemma(const Hparams& hp, const Weights& w) {
    ModelForm form = gemma_form(read_info(hp, w), hp);
    form.scales_given_embeddings = true;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Gemma 2. Gemma Team 2024, arXiv:2408.00118: the outputs of mixer and block are normalised too,
// scores and logits are soft-capped, and every other layer has a window.
//
//   x += n(Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x)))
//   x += n(Wdown (gelu(Wgate n(x)) * Wup n(x)))
std::unique_ptr<Model> make_gemma2(const Hparams& hp, const Weights& w) {
    ModelForm form = gemma_form(read_info(hp, w), hp);
    form.norms = kSandwich;
    form.scales_given_embeddings = true;
    form.logit_softcap = hp.positive("final_logit_softcapping", 30.0f);
    form.set_windows(read_windows(hp, form.info.n_layers, 2, 4096));
    set_score_scale(form, hp, 46);
    for (AttentionForm& layer : form.attention) {
        layer.how.softcap = hp.positive("attn_logit_softcapping", 50.0f);
        Rope& rope = layer.rotation.rope;
        if (is_windowed(layer))
            rope.base = hp.positive("rope.freq_base_swa", static_cast<float>(rope.base));
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Gemma 3. Gemma Team 2025, arXiv:2503.19786: normalised heads of q and k replace the soft cap.
//
//   x += n(Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x)))
//   x += n(Wdown (gelu(Wgate n(x)) * Wup n(x)))
std::unique_ptr<Model> make_gemma3(const Hparams& hp, const Weights& w) {
    ModelForm form = gemma3_form(read_info(hp, w), hp, {.qk_norm = QkNorm::shared});
    if (hp.number("final_logit_softcapping", 0.0f) != 0.0f)
        form.logit_softcap = hp.positive("final_logit_softcapping");
    set_score_scale(form, hp, 62);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// EmbeddingGemma. Gemma Team 2025, arXiv:2509.20354: Gemma 3 as an encoder; its windows extend to
// both sides of a token.
std::unique_ptr<Model> make_gemma_embedding(const Hparams& hp, const Weights& w) {
    ModelForm form =
        gemma3_form(read_encoder_info(hp, w), hp, {.within = true, .qk_norm = QkNorm::shared});
    for (AttentionForm& layer : form.attention)
        if (is_windowed(layer)) layer.window.kind = WindowKind::symmetric;
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

}  // namespace plait
