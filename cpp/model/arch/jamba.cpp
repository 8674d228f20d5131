// Jamba. Lieber et al. 2024, arXiv:2403.19887: most layers are Mamba, some attention, which does not
// rotate; some feed-forward blocks are mixtures of experts.
//
//   x += attend(Wq n(x), Wk n(x), Wv n(x))  or  mamba(n(x))             n = RMSNorm
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                 SwiGLU, or a mixture of them
#include "model/blocks/mamba.h"
#include "model/recurrent_decoder.h"

namespace plait {

std::unique_ptr<Model> make_jamba(const Hparams& hp, const Weights& w) {
    ModelForm form = ModelForm::hybrid(hp, w, Norm::rms(hp), RopePairs::none);
    form.mixture = read_mixture(hp, /*required=*/false);
    form.mixture.n_ffn = hp.count("feed_forward_length");
    for (int i = 0; i < form.info.n_layers; ++i)
        form.mixture.layers.push_back(LayerWeights(w, i).has("ffn_gate_inp.weight"));
    return std::make_unique<RecurrentDecoder<MambaMixer>>(hp, w, std::move(form));
}

}  // namespace plait
