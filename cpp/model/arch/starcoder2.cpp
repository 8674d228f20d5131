// StarCoder2. Lozhkov et al. 2024, arXiv:2402.19173: rotary positions and biases everywhere.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv) + bo
//   x += Wdown . gelu(Wup . n(x) + bup) + bdown                             n = LayerNorm
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class StarCoder2 final : public RotaryDecoder {
public:
    StarCoder2(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::layer(hp), /*interleaved=*/false) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(
                read_feed_forward(LayerWeights(w, i), info().width, n_ffn, FeedForward::plain));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::gelu_tanh);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_starcoder2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<StarCoder2>(hparams, weights);
}

}  // namespace plait
