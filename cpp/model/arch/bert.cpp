// BERT and its successors. n = LayerNorm.
#include "base/error.h"
#include "base/text.h"
#include "model/encoder.h"

namespace plait {
namespace {

Activation read_activation(const Hparams& hp) {
    const std::string name = hp.string("hidden_activation", "gelu");
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
    if (name == "silu" || name == "swish") return Activation::silu;
    if (name == "relu") return Activation::relu;
    throw UnsupportedError(text(hp.key("hidden_activation"), ": unknown activation \"", name,
                                "\"; known are gelu, gelu_pytorch_tanh, silu, relu"));
}

}  // namespace

// BERT. Devlin et al. 2018, arXiv:1810.04805: each sum is normalised. All tokens have the first
// type, "sentence A".
//
//   x = n(E[token] + T[0] + P[position])
//   x = n(x + Wo attend(Wq x + bq, Wk x + bk, Wv x + bv) + bo)
//   x = n(x + Wdown gelu(Wup x + bup) + bdown)
std::unique_ptr<Model> make_bert(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_encoder_info(hp, w);
    info.n_positions = hp.count("context_length", INT32_MAX);
    ModelForm form = encoder_form(std::move(info), hp, RopePairs::none, kSumNorm);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu;
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// Nomic Embed. Nussbaum et al. 2024, arXiv:2402.01613: BERT with rotation and gates.
//
//   x = n(E[token] + T[0])
//   x = n(x + Wo attend(rope(Wq x), rope(Wk x), Wv x))
//   x = n(x + Wdown (silu(Wgate x) * Wup x))
std::unique_ptr<Model> make_nomic_bert(const Hparams& hp, const Weights& w) {
    ModelForm form = encoder_form(read_encoder_info(hp, w), hp, RopePairs::halves, kSumNorm);
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// Nomic Embed v2. Nussbaum & Duderstadt 2025, arXiv:2502.07972: every other layer has experts
// instead of the feed-forward block. Neither experts nor feed-forward blocks have gates.
//
//   x = n(x + sum_e p_e Wdown_e gelu(Wup_e x))     e: the largest of p = softmax(Wrouter x)
std::unique_ptr<Model> make_nomic_bert_moe(const Hparams& hp, const Weights& w) {
    ModelForm form = encoder_form(read_encoder_info(hp, w), hp, RopePairs::halves, kSumNorm);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu;
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    form.mixture.gated = false;
    const int every = hp.count("moe_every_n_layers", Hparams::kMaxLayers);
    for (int i = 0; i < form.info.n_layers; ++i) form.mixture.layers.push_back(i % every == 1);
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// Jina Embeddings v2. Guenther et al. 2023, arXiv:2310.19923: BERT with ALiBi (arXiv:2108.12409) on
// the distance in both directions, and gates.
//
//   x = n(E[token] + T[0])
//   x = n(x + Wo attend(Wq x + bq, Wk x + bk, Wv x + bv, slopes) + bo)
//   x = n(x + Wdown (gelu(g) * u) + bdown),  [g, u] = Wup x
std::unique_ptr<Model> make_jina_bert_v2(const Hparams& hp, const Weights& w) {
    constexpr float kMaxBias = 8.0f;  // not stored in files
    ModelForm form = encoder_form(read_encoder_info(hp, w), hp, RopePairs::none, kSumNorm);
    form.feed_forward = FeedForward::gate_in_up;
    form.activation = Activation::gelu;
    for (AttentionForm& layer : form.attention) layer.how.alibi_max_bias = kMaxBias;
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// Jina Embeddings v3. Sturua et al. 2024, arXiv:2409.10173: BERT with rotation.
//
//   x = n(E[token] + T[0])
//   x = n(x + Wo attend(rope(Wq x + bq), rope(Wk x + bk), Wv x + bv) + bo)
//   x = n(x + Wdown gelu(Wup x + bup) + bdown)
std::unique_ptr<Model> make_jina_bert_v3(const Hparams& hp, const Weights& w) {
    ModelForm form = encoder_form(read_encoder_info(hp, w), hp, RopePairs::halves, kSumNorm);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu;
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// ModernBERT. Warner et al. 2024, arXiv:2412.13663: norms before the blocks, rotation, and gates.
// Two of three layers have a window around each token and a rotation base of their own. n has no
// bias.
//
//   x  = n(E[token])
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))    first layer: x, not n(x)
//   x += Wdown (gelu(Wgate n(x)) * Wup n(x))
//   x  = n(x) after the last layer
std::unique_ptr<Model> make_modern_bert(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_encoder_info(hp, w);
    info.scored = Pooling::mean;
    ModelForm form = encoder_form(std::move(info), hp, RopePairs::halves, kPreNorm);
    form.first_norm_is_optional = true;
    form.feed_forward = FeedForward::gate_in_up;
    form.activation = read_activation(hp);
    form.output_norm = "output_norm";
    form.set_windows(read_windows(hp, form.info.n_layers, 3, 0, FullLayer::first));
    for (AttentionForm& layer : form.attention) {
        if (!is_windowed(layer)) continue;
        layer.window.kind = WindowKind::symmetric;
        layer.rotation.rope.base = hp.positive("rope.freq_base_swa", 10000.0f);
    }
    return std::make_unique<Encoder>(hp, w, std::move(form), Activation::gelu);
}

// EuroBERT. Boizard et al. 2025, arXiv:2503.05500: LLaMA with bidirectional attention.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))                 n = RMSNorm
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                              SwiGLU
std::unique_ptr<Model> make_eurobert(const Hparams& hp, const Weights& w) {
    ModelForm form(read_encoder_info(hp, w), hp, Norm::rms(hp), RopePairs::halves,
                   {.within = true});
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

// NeoBERT. Le Breton et al. 2025, arXiv:2502.19587: EuroBERT with one matrix for q, k and v, and
// one for gate and up.
std::unique_ptr<Model> make_neo_bert(const Hparams& hp, const Weights& w) {
    ModelForm form(read_encoder_info(hp, w), hp, Norm::rms(hp), RopePairs::neighbours,
                   {.within = true});
    form.feed_forward = FeedForward::gate_in_up;
    form.output_norm = "enc.output_norm";
    return std::make_unique<Encoder>(hp, w, std::move(form));
}

}  // namespace plait
