// Models with multi-head latent attention (MLA). n = RMSNorm.
#include <cmath>

#include "base/text.h"
#include "model/blocks/latent_attention.h"
#include "model/decoder.h"

namespace plait {
namespace {

class LatentDecoder final : public Decoder {
public:
    LatentDecoder(const Hparams& hp, const Weights& w, ModelForm form, LatentAttention attention)
        : Decoder(hp, w, std::move(form)), attention_(std::move(attention)) {
        for (int i = 0; i < info().n_all_layers(); ++i)
            latent_.push_back(read_latent_weights(LayerWeights(w, i), info().width, attention_));
    }

protected:
    std::vector<StateSpec> layer_memory(int) const override {
        return {latent_attention_spec(attention_)};
    }
    KeyRotation key_rotation(int, const BuildOptions& options) const override {
        const Rotation& rotation = attention_.rotation;
        return {rotation.rope, rotation.factors_for(options.n_ctx), attention_.rotated_from()};
    }

    Value mixer(Step& step, int i, Value h) const override {
        const LatentWeights& w = latent_[static_cast<size_t>(i)];
        return latent_attention(step, i, h, w, attention_, form_.norm);
    }

private:
    LatentAttention attention_;
    std::vector<LatentWeights> latent_;  // by layer
};

// Returns whether the experts are chosen as in DeepSeek-V2. The files of V3 have the same keys.
bool is_v2(const Mixture& mixture, const Weights& w) {
    if (mixture.routing.gating != Gating::softmax) return false;
    for (size_t i = 0; i < mixture.layers.size(); ++i)
        if (w.has(text("blk.", i, ".exp_probs_b.bias"))) return false;
    return true;
}

}  // namespace

// DeepSeek-V2, arXiv:2405.04434, and V3, arXiv:2412.19437: experts and shared experts; the first
// layers are dense.
//
//   x += latent_attention(n(x))
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))      f(n) = Wdown (silu(Wgate n) * Wup n)
//
//   e: the largest of p + bias within the best groups of consecutive experts; a group is ranked by
//      the largest of p in V2, and by the sum of the two largest of p + bias in V3
//   p: softmax or sigmoid of Wrouter n(x), optionally divided by its sum, times a factor
std::unique_ptr<Model> make_deepseek2(const Hparams& hp, const Weights& w) {
    ModelForm form(read_info(hp, w), Norm::rms(hp));
    form.mixture = read_shared_mixture(hp, form.info.n_layers);
    if (is_v2(form.mixture, w)) form.mixture.routing.group_best = 1;
    form.add_drafting_layers(hp, w);
    LatentAttention attention = read_latent_attention(hp, RopePairs::neighbours);
    scale_scores_by_yarn(hp, attention);
    return std::make_unique<LatentDecoder>(hp, w, std::move(form), std::move(attention));
}

// MiniCPM3. OpenBMB 2024, https://huggingface.co/openbmb/MiniCPM3-4B; scales: MiniCPM,
// arXiv:2404.06395. The cache stores full keys and values, not latent vectors. Files do not state
// the scales.
//
//   x += r latent_attention(n(x))                        r = 1.4 / sqrt(layers)
//   x += r Wdown (silu(Wgate n(x)) * Wup n(x))           SwiGLU
std::unique_ptr<Model> make_minicpm3(const Hparams& hp, const Weights& w) {
    ModelForm form(read_info(hp, w), Norm::rms(hp));
    form.scales_given_embeddings = true;
    form.embedding_scale = 12.0f;
    form.residual_scale = 1.4f / std::sqrt(static_cast<float>(form.info.n_layers));
    form.logit_scale = 256.0f / static_cast<float>(form.info.width);
    const int head_dim = form.info.width / hp.count("attention.head_count");
    LatentAttention attention = read_latent_attention(hp, RopePairs::halves, head_dim);
    read_long_rope_factors(w, attention.rotation);
    return std::make_unique<LatentDecoder>(hp, w, std::move(form), std::move(attention));
}

}  // namespace plait
