// NVIDIA's Nemotron models: a squared ReLU without a gate.
#include <optional>

#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {

// Nemotron-4 and Minitron. Parmar et al. 2024, arXiv:2402.16819: rotation of a part of each head.
// The weights of the norms are 1 + w in the paper; files store 1 + w.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))          n = LayerNorm
//   x += Wdown relu(Wup n(x))^2
std::unique_ptr<Model> make_nemotron(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::relu_squared;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

namespace {

// Nemotron-H. NVIDIA 2025, arXiv:2504.03624; Nemotron 3 Nano, arXiv:2512.20848: each layer is
// Mamba-2, attention without rotation, a feed-forward block or, in Nemotron 3, a mixture of
// experts.
//
//   x += f(n(x))      n = RMSNorm
class NemotronH final : public Decoder {
public:
    NemotronH(const Hparams& hp, const Weights& w, ModelForm form, const std::vector<int>& n_ffn)
        : Decoder(hp, w, std::move(form)), mamba_(n_ffn.size()), feed_forward_(n_ffn.size()) {
        for (size_t i = 0; i < n_ffn.size(); ++i) {
            const LayerWeights layer(w, static_cast<int>(i));
            if (attends(static_cast<int>(i)) || form_.mixture.at(static_cast<int>(i))) continue;
            if (n_ffn[i] > 0)
                feed_forward_[i] =
                    read_feed_forward(layer, info().width, n_ffn[i], FeedForward::plain);
            else
                mamba_[i].emplace(hp, layer, info().width);
        }
    }

protected:
    std::vector<StateSpec> layer_memory(int i) const override {
        if (attends(i)) return Decoder::layer_memory(i);
        const std::optional<Mamba2Mixer>& mamba = mamba_[static_cast<size_t>(i)];
        return mamba ? std::vector<StateSpec>{mamba->spec()} : std::vector<StateSpec>{};
    }

    Value mixer(Step& step, int i, Value h) const override {
        if (attends(i)) return Decoder::mixer(step, i, h);
        if (form_.mixture.at(i)) return Decoder::block(step, i, h);
        const auto at = static_cast<size_t>(i);
        if (mamba_[at]) return (*mamba_[at])(step, i, 0, h, form_.norm);
        return plait::feed_forward(step, i, h, feed_forward_[at], form_.activation);
    }

private:
    std::vector<std::optional<Mamba2Mixer>> mamba_;  // by layer
    std::vector<FeedForwardWeights> feed_forward_;   // by layer
};

std::unique_ptr<Model> make_hybrid(const Hparams& hp, const Weights& w, bool has_experts) {
    const char* const epsilon = hp.has("attention.layer_norm_rms_epsilon")
                                    ? "attention.layer_norm_rms_epsilon"
                                    : "attention.layer_norm_epsilon";
    ModelForm form =
        ModelForm::hybrid(hp, w, {NormKind::rms, hp.positive(epsilon)}, RopePairs::none);
    form.norms = {.mixer_in = "attn_norm"};
    form.feed_forward = FeedForward::none;
    form.activation = Activation::relu_squared;
    const int n_layers = form.info.n_layers;
    const std::vector<int> n_ffn =
        hp.per_layer("feed_forward_length", n_layers, 0, Hparams::kMaxSize);
    if (has_experts) {
        form.mixture = read_shared_mixture(hp, n_layers, {.gating = Gating::sigmoid});
        form.mixture.gated = false;
        form.mixture.layers.clear();
        for (const int n : n_ffn) form.mixture.layers.push_back(n > 0);
    }
    return std::make_unique<NemotronH>(hp, w, std::move(form), n_ffn);
}

}  // namespace

std::unique_ptr<Model> make_nemotron_h(const Hparams& hp, const Weights& w) {
    return make_hybrid(hp, w, /*has_experts=*/false);
}

//   x += s sum_e p_e f_e(n(x)) + f_shared(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_nemotron_h_moe(const Hparams& hp, const Weights& w) {
    return make_hybrid(hp, w, /*has_experts=*/true);
}

}  // namespace plait
