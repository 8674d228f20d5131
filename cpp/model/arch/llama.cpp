// LLaMA, and models that differ from it in a few details. n = RMSNorm.
#include "base/text.h"
#include "model/decoder.h"

namespace plait {
namespace {

ModelForm llama_form(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    for (AttentionForm& layer : form.attention)
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    return form;
}

}  // namespace

// LLaMA. Touvron et al. 2023, arXiv:2302.13971; grouped-query attention: arXiv:2305.13245;
// experts as in Mixtral: Jiang et al. 2024, arXiv:2401.04088.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                  SwiGLU, or a mixture of them
std::unique_ptr<Model> make_llama(const Hparams& hp, const Weights& w) {
    ModelForm form = llama_form(hp, w);
    form.mixture = read_llama_mixture(hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// SmolLM3. Hugging Face 2025, https://huggingface.co/blog/smollm3: LLaMA in which every fourth
// layer does not rotate (NoPE: arXiv:2501.18795).
std::unique_ptr<Model> make_smollm3(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    for (size_t i = 0; i < form.attention.size(); ++i) form.attention[i].rotates = (i + 1) % 4 != 0;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Arcee AFM. Arcee AI 2025,
// https://www.arcee.ai/blog/deep-dive-afm-4-5b-the-first-arcee-foundational-model: a squared ReLU
// without a gate.
//
//   x += Wdown relu(Wup n(x))^2
std::unique_ptr<Model> make_arcee(const Hparams& hp, const Weights& w) {
    ModelForm form = llama_form(hp, w);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::relu_squared;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// InternLM2. Cai et al. 2024, arXiv:2403.17297: the same formulas as LLaMA.
std::unique_ptr<Model> make_internlm2(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::neighbours));
}

// Seed-OSS. ByteDance 2025, https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct: LLaMA with
// biases on q, k and v.
std::unique_ptr<Model> make_seed_oss(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves);
    form.norms = {.mixer_in = "attn_norm", .block_in = "post_attention_norm"};
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// ERNIE 4.5 0.3B. Baidu 2025, https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf.
std::unique_ptr<Model> make_ernie4_5(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::neighbours));
}

// Hunyuan 0.5B to 7B. Tencent 2025, https://github.com/Tencent-Hunyuan/Hunyuan-7B: heads of q and k
// are normalised after they are rotated.
//
//   x += Wo attend(n(rope(Wq n(x))), n(rope(Wk n(x))), Wv n(x))
std::unique_ptr<Model> make_hunyuan_dense(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = QkNorm::shared, .norm_after_rotation = true});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Ministral 3. Mistral AI 2025, https://huggingface.co/mistralai/Ministral-3-8B-Instruct-2512:
// LLaMA with a factor t of the queries that grows with their position, as in Llama 4.
//
//   x += Wo attend(t rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   t  = 1 + s ln(1 + floor(position / l))
std::unique_ptr<Model> make_mistral3(const Hparams& hp, const Weights& w) {
    ModelForm form = llama_form(hp, w);
    form.mixture = read_llama_mixture(hp);
    for (AttentionForm& layer : form.attention) layer.temperature = read_temperature(hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

namespace {

// Three of four layers rotate and attend within a chunk of positions. The fourth attends to all
// positions, and its queries have a factor that grows with their position. Files do not state these
// numbers, except that they may list the layers with chunks.
void set_chunks(ModelForm& form, const Hparams& hp) {
    constexpr int32_t kChunk = 8192;
    const std::vector<Window> stated = read_windows(hp, form.info.n_layers, 4, kChunk);
    for (size_t i = 0; i < form.attention.size(); ++i) {
        AttentionForm& layer = form.attention[i];
        layer.rotates = (i + 1) % 4 != 0;
        if (layer.rotates != (stated[i].kind != WindowKind::full))
            hp.refuse("attention.sliding_window_pattern",
                      "expected chunks in all layers but every fourth");
        layer.norm_after_rotation = layer.norm_after_rotation && layer.rotates;
        if (layer.rotates)
            layer.window = {WindowKind::chunked, kChunk};
        else
            layer.temperature = {.scale = 0.1f, .length = kChunk, .offset = 1};
    }
}

}  // namespace

// Llama 4. Meta 2025, https://ai.meta.com/blog/llama-4-multimodal-intelligence. Heads of q and k
// are normalised without weights after rotation. In some layers, each token uses one expert.
//
//   x += Wo attend(n(rope(Wq n(x))), n(rope(Wk n(x))), Wv n(x))        three of four layers
//   x += Wo attend(t Wq n(x), Wk n(x), Wv n(x))                        the fourth
//   x += f_e(p_e n(x)) + f_shared(n(x))     e: the largest of p = sigmoid(Wrouter n(x))
std::unique_ptr<Model> make_llama4(const Hparams& hp, const Weights& w) {
    ModelForm form = llama_form(hp, w);
    const int step = hp.index("interleave_moe_layer_step", Hparams::kMaxLayers);
    if (step > 0)  // in MobileLLM, all layers are dense
        form.mixture =
            read_shared_mixture(hp, form.info.n_layers, {.gating = Gating::sigmoid}, step);
    form.mixture.n_shared_ffn = form.mixture.n_ffn;
    form.mixture.weighs_input = true;
    if (form.mixture.n_used > 1)
        hp.refuse("expert_used_count", text("expected 1, got ", form.mixture.n_used));
    constexpr int kExpertsWithoutNorm = 128;  // Maverick does not normalise queries and keys
    for (AttentionForm& layer : form.attention)
        layer.norm_after_rotation = form.mixture.n_experts != kExpertsWithoutNorm;
    // In models with attention.sliding_window 0 (MobileLLM), every layer rotates, normalises queries
    // and keys, and attends to all positions.
    if (hp.index("attention.sliding_window", INT32_MAX, 1) > 0) set_chunks(form, hp);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
