// Models with rotary attention and mixtures of experts. n = RMSNorm; f is SwiGLU.
#include "model/decoder.h"

namespace plait {

// DeepSeekMoE. Dai et al. 2024, arXiv:2401.06066: many small experts and shared experts; the first
// layers are dense.
//
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p = softmax(Wrouter n(x))
std::unique_ptr<Model> make_deepseek(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    for (AttentionForm& layer : form.attention)
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    form.mixture = read_shared_mixture(hp, form.info.n_layers);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// dots.llm1. rednote-hilab 2025, arXiv:2506.05767: heads of q and k are normalised, and the mixture
// is that of DeepSeek-V3.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
std::unique_ptr<Model> make_dots1(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.mixture = read_shared_mixture(hp, form.info.n_layers);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// MiniMax-M2. MiniMax 2025, https://huggingface.co/MiniMaxAI/MiniMax-M2: the concatenated heads of
// q and of k are normalised, a part of each head is rotated, and all layers have experts.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += sum_e p_e f_e(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_minimax_m2(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::whole});
    form.mixture = read_shared_mixture(hp, form.info.n_layers,
                                       {.gating = Gating::sigmoid, .renormalize = true});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Ling 2.0. Ant Group 2025, arXiv:2510.22115: a mixture of grouped experts, with dense first
// layers. One matrix holds q, k and v, heads of q and k are normalised, and a part of each head is
// rotated.
//
//   x += Wo attend(rope(n(q)), rope(n(k)), v),  [q, k, v] = Wqkv n(x)      n = RMSNorm
//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))
//
//   e: the largest of p + bias within the best groups of consecutive experts
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_bailingmoe2(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.gating = Gating::sigmoid});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// ERNIE 4.5. Baidu 2025, https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf:
// experts and shared experts in every other layer or in all of them; the first layers are dense.
//
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
//   p = softmax(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_ernie4_5_moe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::neighbours);
    const int step = hp.count("interleave_moe_layer_step", Hparams::kMaxLayers, 1);
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.renormalize = true}, step);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Hunyuan-A13B. Tencent 2025, https://github.com/Tencent-Hunyuan/Hunyuan-A13B: all layers have
// experts and a shared expert. Heads of q and k are normalised after rotation.
//
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))
//   e: the largest of p = softmax(Wrouter n(x)); the chosen sum to 1
std::unique_ptr<Model> make_hunyuan_moe(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = QkNorm::shared, .norm_after_rotation = true});
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.renormalize = true});
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

namespace {

class SmallThinker final : public Decoder {
public:
    SmallThinker(const Hparams& hp, const Weights& w, ModelForm form)
        : Decoder(hp, w, std::move(form)) {}

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = weights(i);
        const Value h = step.name(normalize(step, x, w.mixer_in), Role::attn_norm, i);
        const Value sum = step.name(x + mixer(step, i, h), Role::ffn_inp, i);
        const Value n = step.name(normalize(step, sum, w.block_in), Role::ffn_norm, i);
        return sum + experts(step, i, n, w.experts, form_.mixture, form_.activation, x);
    }
};

}  // namespace

// SmallThinker. Song et al. 2025, arXiv:2507.20984: the router reads the layer's input, so that
// experts can be fetched while the layer attends. One of four layers neither rotates nor has a
// window. In models without windows, every layer rotates.
//
//   s  = x + Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))
//   x  = s + sum_e p_e Wdown_e (relu(Wgate_e n(s)) * Wup_e n(s))
//   e: the largest of p = sigmoid or softmax of Wrouter x; the chosen sum to 1
std::unique_ptr<Model> make_smallthinker(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves);
    form.activation = Activation::relu;
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.renormalize = true});
    if (hp.index("attention.sliding_window", INT32_MAX, 0) > 0) {
        form.set_windows(read_windows(hp, form.info.n_layers, 4, 0, FullLayer::first));
        for (size_t i = 0; i < form.attention.size(); ++i) form.attention[i].rotates = i % 4 != 0;
    }
    return std::make_unique<SmallThinker>(hp, w, std::move(form));
}

}  // namespace plait
