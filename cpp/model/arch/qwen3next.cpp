// Qwen3-Next. Qwen team 2025, https://qwen.ai/blog?id=qwen3-next: most layers are gated delta nets,
// Yang et al. 2024, arXiv:2412.06464, the others attention whose output has a gate; all have experts.
//
//   q, k, v = silu(conv(Wqkv n(x))), q and k of unit length;  b, a = Wba n(x)      n = RMSNorm
//   x += Wout (n(delta(q / sqrt(d), k, v, A softplus(a + t), sigmoid(b))) * silu(Wz n(x)))
//   or  q, g = Wq n(x);  x += Wo (sigmoid(g) * attend(rope(n(q)), rope(n(k)), v))
//   x += sum_e p_e f_e(n(x)) + sigmoid(w n(x)) f_shared(n(x))                SwiGLU each
#include "model/blocks/delta_net.h"
#include "model/recurrent_decoder.h"

namespace plait {

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
