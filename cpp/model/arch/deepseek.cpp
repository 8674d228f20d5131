// DeepSeek-V2, arXiv:2405.04434, and V3, arXiv:2412.19437: attention over one latent vector per
// token, and experts beside shared ones. The first layers have a plain block.
//
//   x += latent_attention(n(x))                                     n = RMSNorm
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))      f(n) = Wdown (silu(Wgate n) * Wup n)
//
//   e: the largest of p + bias within the best groups of consecutive experts
//   p: softmax or sigmoid of Wrouter n(x), optionally divided by its sum, times a factor
#include "model/blocks/latent_attention.h"
#include "model/decoder.h"

namespace plait {
namespace {

class DeepSeek2 final : public Decoder {
public:
    DeepSeek2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, deepseek_form(hp, w)), attention_(read_latent_attention(hp)) {
        for (int i = 0; i < info().n_layers; ++i)
            latent_.push_back(read_latent_weights(LayerWeights(w, i), info().width, attention_));
    }

protected:
    std::vector<StateSpec> layer_memory(int) const override {
        return {latent_attention_spec(attention_)};
    }
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {attention_.rope, {}, attention_.rotated_from()};
    }

    Value mixer(Step& step, int i, Value h) const override {
        return latent_attention(step, i, h, latent_[static_cast<size_t>(i)], attention_,
                                form_.norm);
    }

private:
    static ModelForm deepseek_form(const Hparams& hp, const Weights& w) {
        ModelForm form(read_info(hp, w), Norm::rms(hp));
        std::vector<bool> layers = read_mixture_layers(hp, form.info.n_layers);
        if (!layers.back()) return form;  // all layers are dense
        Mixture& mixture = form.mixture = read_mixture(hp);
        mixture.layers = std::move(layers);
        mixture.routing = read_routing(hp, mixture.n_experts, mixture.n_used);
        mixture.n_ffn = hp.count("expert_feed_forward_length");
        mixture.n_shared_ffn =
            mixture.n_ffn * hp.count("expert_shared_count", Hparams::kMaxSize / mixture.n_ffn);
        return form;
    }

    LatentAttention attention_;
    std::vector<LatentWeights> latent_;  // by layer
};

}  // namespace

std::unique_ptr<Model> make_deepseek2(const Hparams& hp, const Weights& w) {
    return std::make_unique<DeepSeek2>(hp, w);
}

}  // namespace plait
