// Zhipu AI's GLM models. n = RMSNorm.
#include "model/decoder.h"

namespace plait {

// GLM-4-0414. Zhipu AI 2025, https://huggingface.co/THUDM/GLM-4-9B-0414; GLM: arXiv:2406.12793. The
// outputs of mixer and block are also normalised, one matrix holds gate and up, and half of each
// head is rotated. Models with image input (GLM-4.1V) have three positions per token.
//
//   x += n(Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv))    n = RMSNorm
//   x += n(Wdown (silu(g) * u)),  [g, u] = Wup n(x)                            SwiGLU
std::unique_ptr<Model> make_glm4(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    const bool has_sections = has_rope_sections(hp);
    if (has_sections) info.n_pos_per_token = 4;
    ModelForm form(std::move(info), hp, Norm::rms(hp), RopePairs::neighbours);
    form.norms = kSandwich;
    form.feed_forward = FeedForward::gate_in_up;
    for (AttentionForm& layer : form.attention)
        if (has_sections) layer.rotation.rope = read_mrope(hp, layer.heads.head_dim);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// GLM-4.5. Zhipu AI 2025, arXiv:2508.06471: a mixture of experts whose first layers are dense. The
// large model normalises heads of q and k.
//
//   x += Wo attend(rope(n(Wq n(x) + bq)), rope(n(Wk n(x) + bk)), Wv n(x) + bv)
//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_glm4moe(const Hparams& hp, const Weights& w) {
    const bool normalizes = w.has("blk.0.attn_q_norm.weight");
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = normalizes ? QkNorm::shared : QkNorm::none});
    form.norms = {.mixer_in = "attn_norm", .block_in = "post_attention_norm"};
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.gating = Gating::sigmoid});
    form.add_drafting_layers(hp, w);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
