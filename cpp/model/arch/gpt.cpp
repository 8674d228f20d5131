// GPT-2 and its successors of LayerNorm, biases and a GELU without a gate. n = LayerNorm.
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

// GPT-2. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": learned vectors
// for as many positions as the model was trained with.
//
//   x  = E[token] + P[position]
//   x += Wo attend(Wq n(x) + bq, Wk n(x) + bk, Wv n(x) + bv) + bo
//   x += Wdown gelu(Wup n(x) + bup) + bdown
std::unique_ptr<Model> make_gpt2(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_positions = hp.count("context_length", INT32_MAX);
    return std::make_unique<Decoder>(hp, w, gpt_form(std::move(info), hp, RopePairs::none));
}

// GPT-NeoX. Black et al. 2022, arXiv:2204.06745; Pythia, arXiv:2304.01373: rotation of a part of
// each head. With use_parallel_residual, attention and feed-forward stand side by side:
//
//   x += Wo attend(rope(Wq n1(x) + bq), rope(Wk n1(x) + bk), Wv n1(x) + bv) + bo
//      + Wdown gelu(Wup n2(x) + bup) + bdown
std::unique_ptr<Model> make_gptneox(const Hparams& hp, const Weights& w) {
    ModelForm form = gpt_form(read_info(hp, w), hp, RopePairs::halves);
    form.activation = Activation::gelu;
    form.parallel = hp.metadata().boolean(hp.key("use_parallel_residual"));
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// BLOOM. BigScience 2022, arXiv:2211.05100: in place of positions a slope on distance, ALiBi
// (arXiv:2108.12409), and a norm of the embedding.
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

// StarCoder2. Lozhkov et al. 2024, arXiv:2402.19173.
//
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv) + bo
//   x += Wdown gelu(Wup n(x) + bup) + bdown
std::unique_ptr<Model> make_starcoder2(const Hparams& hp, const Weights& w) {
    return std::make_unique<Decoder>(hp, w, gpt_form(read_info(hp, w), hp, RopePairs::halves));
}

}  // namespace plait
