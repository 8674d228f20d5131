// The Qwen models. n = RMSNorm.
#include "model/blocks/delta_net.h"
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

// Qwen3-Next. Qwen team 2025, https://qwen.ai/blog?id=qwen3-next: most layers are gated delta nets,
// Yang et al. 2024, arXiv:2412.06464, the others attention whose output has a gate; all have
// experts.
//
//   q, k, v = silu(conv(Wqkv n(x))), q and k of unit length;  b, a = Wba n(x)      n = RMSNorm
//   x += Wout (n(delta(q / sqrt(d), k, v, A softplus(a + t), sigmoid(b))) * silu(Wz n(x)))
//   or  q, g = Wq n(x);  x += Wo (sigmoid(g) * attend(rope(n(q)), rope(n(k)), v))
//   x += sum_e p_e f_e(n(x)) + sigmoid(w n(x)) f_shared(n(x))                SwiGLU each
std::unique_ptr<Model> make_qwen3next(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = QkNorm::shared, .gated = true});
    form.norms = {.mixer_in = "attn_norm", .block_in = "post_attention_norm"};
    const std::vector<bool> recurrent = read_recurrent_layers(hp, form.info.n_layers);
    for (size_t i = 0; i < recurrent.size(); ++i)
        if (recurrent[i]) form.attention[i] = {};
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = read_expert_length(hp, form.mixture);
    form.mixture.n_shared_ffn = read_shared_expert_length(hp);
    form.mixture.routing.renormalize = true;
    return std::make_unique<RecurrentDecoder<DeltaNetMixer>>(hp, w, std::move(form));
}

}  // namespace plait
