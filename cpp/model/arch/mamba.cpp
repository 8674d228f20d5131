// Mamba and Mamba-2: every layer is a recurrent mixer without a feed-forward block. u (in Mamba-2
// also b and c) is convolved along the sequence; see blocks/mamba.h. n = RMSNorm.
#include "model/blocks/mamba.h"

#include "model/decoder.h"

namespace plait {
namespace {

ModelForm mamba_form(const Hparams& hp, const Weights& w) {
    ModelForm form(read_info(hp, w), Norm::rms(hp));
    form.norms = {.mixer_in = "attn_norm"};
    form.feed_forward = FeedForward::none;
    return form;
}

}  // namespace

// Mamba. Gu & Dao 2023, arXiv:2312.00752; and FalconMamba, Zuo et al. 2024, arXiv:2410.05355, which
// normalises dt, b and c.
//
//   x += Wout (silu(z) * scan(u, dt, a, b, c, d))         u, z = Win n(x)
std::unique_ptr<Model> make_mamba(const Hparams& hp, const Weights& w) {
    return std::make_unique<RecurrentDecoder<MambaMixer>>(hp, w, mamba_form(hp, w));
}

// Mamba-2. Dao & Gu 2024, arXiv:2405.21060: one decay per head, and groups of heads share b and c.
//
//   x += Wout n(silu(z) * scan(u, dt, a, b, c, d))     z, u, b, c, dt = Win n(x)
std::unique_ptr<Model> make_mamba2(const Hparams& hp, const Weights& w) {
    return std::make_unique<RecurrentDecoder<Mamba2Mixer>>(hp, w, mamba_form(hp, w));
}

// Jamba. Lieber et al. 2024, arXiv:2403.19887: most layers have Mamba, the others attention without
// rotation. Some feed-forward blocks are mixtures of experts.
//
//   x += attend(Wq n(x), Wk n(x), Wv n(x))  or  mamba(n(x))             n = RMSNorm
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                 SwiGLU, or a mixture of them
std::unique_ptr<Model> make_jamba(const Hparams& hp, const Weights& w) {
    ModelForm form = ModelForm::hybrid(hp, w, Norm::rms(hp), RopePairs::none);
    form.mixture = read_mixture(hp, /*required=*/false);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    for (int i = 0; i < form.info.n_layers; ++i)
        form.mixture.layers.push_back(LayerWeights(w, i).has("ffn_gate_inp.weight"));
    return std::make_unique<RecurrentDecoder<MambaMixer>>(hp, w, std::move(form));
}

}  // namespace plait
