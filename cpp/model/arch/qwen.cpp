// The Qwen models. n = RMSNorm.
#include <algorithm>

#include "model/blocks/delta_net.h"
#include "model/decoder.h"

namespace plait {
namespace {

// Returns a form whose tokens have three positions and a fourth one that is 0.
ModelForm mrope_form(const Hparams& hp, const Weights& w, const AttentionForm& attention,
                     bool in_turn) {
    ModelInfo info = read_info(hp, w);
    info.n_pos_per_token = 4;
    ModelForm form(std::move(info), hp, Norm::rms(hp), RopePairs::halves, attention);
    for (AttentionForm& layer : form.attention)
        layer.rotation.rope = read_mrope(hp, layer.heads.head_dim, in_turn);
    return form;
}

void set_qwen_mixture(ModelForm& form, const Hparams& hp) {
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = read_expert_length(hp, form.mixture);
    form.mixture.routing.renormalize = true;
}

// Most layers are gated delta nets. The others are attention with a gated output.
std::unique_ptr<Model> make_delta_net(const Hparams& hp, const Weights& w, ModelForm form) {
    form.norms = {.mixer_in = "attn_norm", .block_in = "post_attention_norm"};
    const std::vector<bool> recurrent = read_recurrent_layers(hp, form.info.n_layers);
    for (size_t i = 0; i < recurrent.size(); ++i)
        if (recurrent[i]) form.attention[i] = {};
    form.add_drafting_layers(hp, w);
    return std::make_unique<RecurrentDecoder<DeltaNetMixer>>(hp, w, std::move(form));
}

}  // namespace

// Qwen2. Yang et al. 2024, arXiv:2407.10671: LLaMA with biases on q, k and v.
//
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv)
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                              SwiGLU
std::unique_ptr<Model> make_qwen2(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::halves));
}

// Qwen2-VL. Wang et al. 2024, arXiv:2409.12191: Qwen2 with three positions per token (time, height,
// width), which are equal for text. The output of an image encoder is passed as embeddings.
std::unique_ptr<Model> make_qwen2vl(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, mrope_form(hp, w, {}, /*in_turn=*/false));
}

// Qwen3. Yang et al. 2025, arXiv:2505.09388: LLaMA with heads of q and k normalised before
// rotation.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                              SwiGLU
std::unique_ptr<Model> make_qwen3(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Qwen2-MoE (Qwen1.5-MoE). Yang et al. 2024, arXiv:2407.10671: Qwen2 with a mixture of experts and
// one shared expert with a gated output.
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
    set_qwen_mixture(form, hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Qwen3-Next. Qwen team 2025, https://qwen.ai/blog?id=qwen3-next: most layers are gated delta nets
// (Yang et al. 2024, arXiv:2412.06464), the others attention with a gated output. All layers have
// experts.
//
//   q, k, v = silu(conv(Wqkv n(x))), q and k of unit length;  b, a = Wba n(x)      n = RMSNorm
//   x += Wout (n(delta(q / sqrt(d), k, v, A softplus(a + t), sigmoid(b))) * silu(Wz n(x)))
//   or  q, g = Wq n(x);  x += Wo (sigmoid(g) * attend(rope(n(q)), rope(n(k)), v))
//   x += sum_e p_e f_e(n(x)) + sigmoid(w n(x)) f_shared(n(x))                SwiGLU each
std::unique_ptr<Model> make_qwen3next(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = QkNorm::shared, .gated = true});
    set_qwen_mixture(form, hp);
    form.mixture.n_shared_ffn = read_shared_expert_length(hp);
    return make_delta_net(hp, w, std::move(form));
}

// Qwen3.5. Qwen team 2026, https://huggingface.co/Qwen/Qwen3.5-0.8B: the layers of Qwen3-Next with
// three positions per token. Models are dense or have experts.
//
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                                  SwiGLU
std::unique_ptr<Model> make_qwen35(const Hparams& hp, const Weights& w) {
    return make_delta_net(hp, w,
                          mrope_form(hp, w, {.qk_norm = QkNorm::shared, .gated = true},
                                     /*in_turn=*/true));
}

//   x += sum_e p_e f_e(n(x)) + sigmoid(w n(x)) f_shared(n(x))                 SwiGLU each
std::unique_ptr<Model> make_qwen35moe(const Hparams& hp, const Weights& w) {
    ModelForm form =
        mrope_form(hp, w, {.qk_norm = QkNorm::shared, .gated = true}, /*in_turn=*/true);
    set_qwen_mixture(form, hp);
    form.mixture.n_shared_ffn = read_shared_expert_length(hp);
    return make_delta_net(hp, w, std::move(form));
}

namespace {

// DeepStack, Meng et al. 2024, arXiv:2406.04334: an embedding of an image encoder consists of
// several parts, each as wide as the model. The first part is the input, and part i + 1 is added to
// the output of layer i.
class DeepstackDecoder final : public Decoder {
public:
    DeepstackDecoder(const Hparams& hp, const Weights& w, ModelForm form)
        : Decoder(hp, w, std::move(form)) {}

protected:
    Value embed(Step& step) const override {
        const Value given = part(step, 0);
        return given ? step.name(given, Role::inp_embd) : Decoder::embed(step);
    }

    Value layer(Step& step, int i, Value x) const override {
        const Value y = Decoder::layer(step, i, x);
        const Value given = i + 1 < info().n_input_parts ? part(step, i + 1) : Value{};
        return given ? y + given : y;
    }

private:
    Value part(Step& step, int i) const {
        return step.given_part(info().width, info().n_input_parts, i);
    }
};

ModelForm qwen3vl_form(const Hparams& hp, const Weights& w) {
    ModelForm form = mrope_form(hp, w, {.qk_norm = QkNorm::shared}, /*in_turn=*/true);
    const int max = std::min(form.info.n_layers, INT32_MAX / form.info.width - 1);
    form.info.n_input_parts = 1 + hp.index("n_deepstack_layers", max, 0);
    return form;
}

}  // namespace

// Qwen3-VL. Qwen team 2025, arXiv:2511.21631: Qwen3 with three positions per token, whose axes
// alternate over the pairs of a head, and with DeepStack embeddings for images.
std::unique_ptr<Model> make_qwen3vl(const Hparams& hp, const Weights& w) {
    return std::make_unique<DeepstackDecoder>(hp, w, qwen3vl_form(hp, w));
}

std::unique_ptr<Model> make_qwen3vlmoe(const Hparams& hp, const Weights& w) {
    ModelForm form = qwen3vl_form(hp, w);
    set_qwen_mixture(form, hp);
    return std::make_unique<DeepstackDecoder>(hp, w, std::move(form));
}

}  // namespace plait
