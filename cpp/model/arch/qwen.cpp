// The Qwen models without recurrent layers. n = RMSNorm.
#include "model/decoder.h"

namespace plait {

// Qwen2. Yang et al. 2024, arXiv:2407.10671: LLaMA with biases on q, k and v.
//
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv)
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                              SwiGLU
std::unique_ptr<Model> make_qwen2(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::halves));
}

// Qwen2-VL. Wang et al. 2024, arXiv:2409.12191: Qwen2 whose tokens have three positions (time,
// height, width), all equal for text. The output of an image encoder is passed as embeddings.
std::unique_ptr<Model> make_qwen2vl(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_pos_per_token = 4;  // the fourth rotates nothing
    ModelForm form(std::move(info), hp, Norm::rms(hp), RopePairs::halves);
    for (AttentionForm& layer : form.attention)
        layer.rotation.rope = read_mrope(hp, layer.heads.head_dim);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Qwen3. Yang et al. 2025, arXiv:2505.09388: LLaMA with every head of q and k normalised before it
// is rotated.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                              SwiGLU
std::unique_ptr<Model> make_qwen3(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Qwen2-MoE (Qwen1.5-MoE). Yang et al. 2024, arXiv:2407.10671: Qwen2 with a mixture of experts and
// one shared expert, whose output has a gate.
//
//   x += sum_e p_e f_e(n(x)) + sigmoid(w n(x)) f_shared(n(x))    e: the largest of p
//   p = softmax(Wrouter n(x));  f(n) = Wdown (silu(Wgate n) * Wup n)
std::unique_ptr<Model> make_qwen2moe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves);
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = read_expert_length(hp, form.mixture);
    form.mixture.n_shared_ffn = read_shared_expert_length(hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Qwen3-MoE. Yang et al. 2025, arXiv:2505.09388: Qwen3 with a mixture of experts.
//
//   x += sum_e p_e f_e(n(x))    e: the largest of p = softmax(Wrouter n(x)); the chosen sum to 1
std::unique_ptr<Model> make_qwen3moe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = read_expert_length(hp, form.mixture);
    form.mixture.routing.renormalize = true;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
