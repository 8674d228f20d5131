// Cohere's models: attention and feed-forward side by side. n = LayerNorm without bias.
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

}  // namespace plait
