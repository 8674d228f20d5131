// Apertus. Swiss AI Initiative 2025, arXiv:2509.14233: LLaMA with normalised heads of q and k, and
// with xIELU (Huang & Schlag 2024, arXiv:2411.13010) instead of gates. n = RMSNorm.
//
//   x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
//   x += Wdown xielu(Wup n(x))
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "model/decoder.h"

namespace plait {
namespace {

// xielu(x) = b x + p x^2 for x > 0, b x + q (e^x - 1 - x) for the others. The paper switches
// between the branches slightly below 0, where they agree to within q 1e-6.
struct Xielu {
    float p, q, b;

    Value operator()(Value x) const {
        const Value negative = scale(activate(scale(x, -1.0f), Activation::relu), -1.0f);
        const Value curved = scale(activate(negative, Activation::exp) - negative, q, -q);
        return scale(x, b) + (scale(activate(x, Activation::relu_squared), p) + curved);
    }
};

// Reads a key that does not begin with the architecture's name and holds one number, or one per
// layer. p and q are the softplus of the numbers in the file.
std::vector<float> read_numbers(const Hparams& hp, const std::string& key, size_t n_layers) {
    const gguf::Metadata& metadata = hp.metadata();
    if (!metadata.at(key).is_array())
        return std::vector<float>(n_layers, static_cast<float>(metadata.real(key)));
    std::vector<float> numbers = metadata.reals(key);
    if (numbers.size() < n_layers)
        throw ModelError(text(key, ": expected a number for each of ", n_layers, " layers, got ",
                              numbers.size()));
    return numbers;
}

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

class Apertus final : public Decoder {
public:
    Apertus(const Hparams& hp, const Weights& w, ModelForm form) : Decoder(hp, w, std::move(form)) {
        const auto n = static_cast<size_t>(info().n_layers);
        const std::vector<float> p = read_numbers(hp, "xielu.alpha_p", n);
        const std::vector<float> q = read_numbers(hp, "xielu.alpha_n", n);
        const std::vector<float> b = read_numbers(hp, "xielu.beta", n);
        for (size_t i = 0; i < n; ++i)
            if (std::isfinite(p[i]) && std::isfinite(q[i]) && std::isfinite(b[i]))
                activations_.push_back({softplus(p[i]), b[i] + softplus(q[i]), b[i]});
            else
                throw ModelError("xielu.alpha_p, alpha_n and beta: expected finite numbers");
    }

protected:
    Value block(Step& step, int i, Value h) const override {
        const FeedForwardWeights& w = weights(i).feed_forward;
        const Value up = step.name(linear(h, step.weight(w.up)), Role::ffn_up, i);
        const Value y = step.name(activations_[static_cast<size_t>(i)](up), Role::ffn_act, i);
        return step.name(linear(y, step.weight(w.down)), Role::ffn_out, i);
    }

private:
    std::vector<Xielu> activations_;  // by layer
};

}  // namespace

std::unique_ptr<Model> make_apertus(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.feed_forward = FeedForward::plain;
    for (AttentionForm& layer : form.attention) {
        layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
        read_long_rope_factors(w, layer.rotation);
    }
    return std::make_unique<Apertus>(hp, w, std::move(form));
}

}  // namespace plait
