// GLM-4-0414. Zhipu AI 2025, https://huggingface.co/THUDM/GLM-4-9B-0414; GLM: arXiv:2406.12793. The
// outputs of mixer and block are normalised too, one matrix holds gate and up, and half of a head is
// rotated; in models with images (GLM-4.1V), by three positions per token.
//
//   x += n(Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv))    n = RMSNorm
//   x += n(Wdown (silu(g) * u)),  [g, u] = Wup n(x)                            SwiGLU
#include "model/decoder.h"

namespace plait {

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

}  // namespace plait
