// gpt-oss. OpenAI 2025, arXiv:2508.10925: every other layer has a window; each head has a sink, a
// logit that takes part in the softmax and so reduces the weights of all keys (arXiv:2309.17453);
// experts have biases and a special gate. Experts in MXFP4 need no special treatment.
//
//   x += Wo attend(rope(Wq n(x) + bq), rope(Wk n(x) + bk), Wv n(x) + bv, sinks) + bo
//   x += sum_e p_e (Wdown_e swiglu(Wgate_e n(x) + bg, Wup_e n(x) + bu) + bd)     n = RMSNorm
//                               e: the largest of Wrouter n(x) + br; p: their softmax
//   swiglu(g, u) = g sigmoid(1.702 g) (u + 1), g at most 7, u within -7 .. 7
#include "model/decoder.h"

namespace plait {
namespace {

class GptOss final : public Decoder {
public:
    using Decoder::Decoder;

protected:
    Value block(Step& step, int i, Value h) const override {
        constexpr float kAlpha = 1.702f, kLimit = 7.0f;
        return clamped_experts(step, i, h, weights(i).experts, form_.mixture, kAlpha, kLimit);
    }
};

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.has_sinks = true});
    form.norms = {.mixer_in = "attn_norm", .block_in = "post_attention_norm"};
    form.set_windows(read_windows(hp, form.info.n_layers, 2));
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = read_expert_length(hp, form.mixture);
    form.mixture.routing.gating = Gating::softmax_chosen;
    return std::make_unique<GptOss>(hp, w, std::move(form));
}

}  // namespace plait
