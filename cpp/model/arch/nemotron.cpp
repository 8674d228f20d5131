// Nemotron and Minitron. Parmar et al. 2024, arXiv:2402.16819: rotary positions on a part of each
// head, a squared ReLU and no gate. The norms' weights count from one; files have them whole.
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))          n = LayerNorm
//   x += Wdown . relu(Wup . n(x))^2
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class Nemotron final : public RotaryDecoder {
public:
    Nemotron(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::layer(hp), /*interleaved=*/false) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(
                read_feed_forward(LayerWeights(w, i), info().width, n_ffn, FeedForward::plain));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::relu_squared);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_nemotron(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Nemotron>(hparams, weights);
}

}  // namespace plait
