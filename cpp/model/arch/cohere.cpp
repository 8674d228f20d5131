// Cohere's models: attention and feed-forward block are parallel. n = LayerNorm without bias.
//
//   h  = n(x)
//   x += Wo attend(rope(Wq h), rope(Wk h), Wv h) + Wdown (silu(Wgate h) * Wup h)
#include "model/decoder.h"

namespace plait {
namespace {

ModelForm cohere_form(const Hparams& hp, const Weights& w, QkNorm qk_norm) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::neighbours, {.qk_norm = qk_norm});
    form.norms = {.mixer_in = "attn_norm"};
    form.parallel = true;
    return form;
}

}  // namespace

// Command R and R+. Cohere 2024, https://docs.cohere.com/docs/command-r: R+ normalises queries and
// keys, each head with its own weight.
std::unique_ptr<Model> make_command_r(const Hparams& hp, const Weights& w) {
    const bool normalizes = w.has("blk.0.attn_q_norm.weight");
    ModelForm form = cohere_form(hp, w, normalizes ? QkNorm::per_head : QkNorm::none);
    form.logit_scale = hp.positive("logit_scale", 1.0f);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

// Command R7B. Cohere 2025, arXiv:2504.00698: three of four layers have a window and rotate; the
// fourth has neither.
std::unique_ptr<Model> make_cohere2(const Hparams& hp, const Weights& w) {
    ModelForm form = cohere_form(hp, w, QkNorm::none);
    form.logit_scale = hp.positive("logit_scale");
    hp.count("attention.sliding_window", INT32_MAX);  // required
    form.set_windows(read_windows(hp, form.info.n_layers, 4));
    for (AttentionForm& layer : form.attention) layer.rotates = is_windowed(layer);
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

namespace {

// Averages the output of the chosen experts and that of the shared expert.
class Cohere2Moe final : public Decoder {
public:
    Cohere2Moe(const Hparams& hp, const Weights& w, ModelForm form)
        : Decoder(hp, w, std::move(form)) {}

protected:
    Value block(Step& step, int i, Value h) const override {
        const Value sum = Decoder::block(step, i, h);
        return form_.mixture.at(i) && form_.mixture.n_shared_ffn > 0 ? scale(sum, 0.5f) : sum;
    }
};

}  // namespace

// Command A with experts. Cohere 2026: as Command R7B, but the first of four layers is the one
// without a window. The first layers are dense, and all of them rotate; the others have experts. n
// = LayerNorm or RMSNorm.
//
//   h  = n(x)
//   x += Wo attend(rope(Wq h), rope(Wk h), Wv h) + (s sum_e p_e f_e(h) + f_shared(h)) / 2
//   e: the largest of p = sigmoid(Wrouter h)
std::unique_ptr<Model> make_cohere2moe(const Hparams& hp, const Weights& w) {
    const bool is_rms = hp.number("attention.layer_norm_rms_epsilon", 0.0f) != 0.0f;
    ModelForm form(hp, w, is_rms ? Norm::rms(hp) : Norm::layer(hp), RopePairs::neighbours);
    form.norms = {.mixer_in = "attn_norm"};
    form.parallel = true;
    form.logit_scale = hp.positive("logit_scale");
    hp.count("attention.sliding_window", INT32_MAX);  // required
    form.set_windows(read_windows(hp, form.info.n_layers, 4, 0, FullLayer::first));
    form.mixture = read_shared_mixture(hp, form.info.n_layers, {.gating = Gating::sigmoid});
    const int n_dense = hp.index("leading_dense_block_count", Hparams::kMaxLayers, 0);
    for (size_t i = 0; i < form.attention.size(); ++i) {
        AttentionForm& layer = form.attention[i];
        layer.rotates = is_windowed(layer) || static_cast<int>(i) < n_dense;
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    }
    return std::make_unique<Cohere2Moe>(hp, w, std::move(form));
}

}  // namespace plait
