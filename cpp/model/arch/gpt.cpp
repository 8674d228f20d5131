// GPT-2 and its successors. n = LayerNorm. Most models have biases and a GELU without a gate.
#include "model/decoder.h"

namespace plait {
namespace {

ModelForm gpt_form(ModelInfo info, const Hparams& hp, RopePairs pairs) {
    ModelForm form(std::move(info), hp, Norm::layer(hp), pairs);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu_tanh;
    return form;
}

}  // namespace

// GPT-2. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": each position
// of the training context has a learned vector.
//
//   x  = E[token] + P[position]
//   x += Wo attend(Wq n(x) + bq, Wk n(x) + bk, Wv n(x) + bv) + bo
//   x += Wdown gelu(Wup n(x) + bup) + bdown
std::unique_ptr<Model> make_gpt2(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_positions = hp.count("context_length", INT32_MAX);
    return std::make_unique<Decoder>(hp, w, gpt_form(std::move(info), hp, RopePairs::none));
}

// StarCoder. Li et al. 2023, arXiv:2305.06161: GPT-2 with one key and value head.
std::unique_ptr<Model> make_starcoder(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_positions = hp.count("context_length", INT32_MAX);
    ModelForm form = gpt_form(std::move(info), hp, RopePairs::neighbours);
    for (AttentionForm& layer : form.attention) {
        layer.rotates = false;
        layer.only_shifts_rotate = true;
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// GPT-NeoX. Black et al. 2022, arXiv:2204.06745; Pythia, arXiv:2304.01373: rotation of a part of
// each head. With use_parallel_residual, attention and feed-forward block are parallel:
//
//   x += Wo attend(rope(Wq n1(x) + bq), rope(Wk n1(x) + bk), Wv n1(x) + bv) + bo
//      + Wdown gelu(Wup n2(x) + bup) + bdown
std::unique_ptr<Model> make_gptneox(const Hparams& hp, const Weights& w) {
    ModelForm form = gpt_form(read_info(hp, w), hp, RopePairs::halves);
    form.activation = Activation::gelu;
    form.parallel = hp.metadata().boolean(hp.key("use_parallel_residual"));
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// BLOOM. BigScience 2022, arXiv:2211.05100: ALiBi (arXiv:2108.12409), a bias proportional to
// distance, replaces positions, and the embedding is normalised.
//
//   x  = n(E[token])
//   x += Wo attend(Wq n(x) + bq, Wk n(x) + bk, Wv n(x) + bv, slopes) + bo
//   x += Wdown gelu(Wup n(x) + bup) + bdown
std::unique_ptr<Model> make_bloom(const Hparams& hp, const Weights& w) {
    constexpr float kMaxBias = 8.0f;  // the paper's
    ModelForm form = gpt_form(read_info(hp, w), hp, RopePairs::none);
    form.has_embedding_norm = true;
    for (AttentionForm& layer : form.attention)
        layer.how.alibi_max_bias = hp.positive("attention.max_alibi_bias", kMaxBias);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// MPT. MosaicML 2023, https://www.databricks.com/blog/mpt-7b: ALiBi replaces positions, and the
// elements of q, k and v are clamped. n has no bias. Some models normalise the concatenated heads
// of q and of k.
//
//   x += Wo attend(clamp(Wq n(x)), clamp(Wk n(x)), clamp(Wv n(x)), slopes)
//   x += Wdown gelu(Wup n(x))
std::unique_ptr<Model> make_mpt(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    if (w.has("position_embd.weight")) info.n_positions = hp.count("context_length", INT32_MAX);
    ModelForm form = gpt_form(std::move(info), hp, RopePairs::none);
    form.activation = Activation::gelu;
    const float bias = hp.number("attention.max_alibi_bias", 0.0f);
    for (AttentionForm& layer : form.attention) {
        layer.clamp = read_clamp(hp);
        layer.how.alibi_max_bias = bias == 0.0f ? bias : hp.positive("attention.max_alibi_bias");
        if (w.has("blk.0.attn_q_norm.weight")) layer.qk_norm = QkNorm::whole;
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// StarCoder2. Lozhkov et al. 2024, arXiv:2402.19173.
//
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv) + bo
//   x += Wdown gelu(Wup n(x) + bup) + bdown
std::unique_ptr<Model> make_starcoder2(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, gpt_form(read_info(hp, w), hp, RopePairs::halves));
}

// StableLM. Bellagente et al. 2024, arXiv:2402.17834: LLaMA with LayerNorm and rotation of a part
// of each head. StableLM 2 12B normalises each head of q and k with weights of its own and has no
// second norm, because its attention and feed-forward block are parallel.
//
//   h  = n1(x)                                                        n1, n2 = LayerNorm
//   x += Wo attend(rope(n(Wq h)), rope(n(Wk h)), Wv h)
//   x += Wdown (silu(Wgate g) * Wup g)                                g = n2(x); 12B: h
std::unique_ptr<Model> make_stablelm(const Hparams& hp, const Weights& w) {
    const bool normalizes = w.has("blk.0.attn_q_norm.weight");
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves,
                   {.qk_norm = normalizes ? QkNorm::per_head : QkNorm::none});
    if (!w.has("blk.0.ffn_norm.weight")) {
        form.norms = {.mixer_in = "attn_norm"};
        form.parallel = true;
    }
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
