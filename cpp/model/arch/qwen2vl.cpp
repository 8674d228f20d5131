// Qwen2-VL. Wang et al. 2024, arXiv:2409.12191: Qwen2 whose tokens have three positions, of time,
// height and width; text has the same in all of them. What an image encoder made comes as embeddings.
//
//   x += Wo . attend(rope(Wq . n(x) + bq), rope(Wk . n(x) + bk), Wv . n(x) + bv)    n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                                   SwiGLU
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

ModelInfo qwen2vl_info(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    info.n_pos_per_token = 4;  // the fourth turns nothing here
    return info;
}

class Qwen2Vl final : public RotaryDecoder {
public:
    Qwen2Vl(const Hparams& hp, const Weights& w)
        : RotaryDecoder(qwen2vl_info(hp, w), hp, w, Norm::rms(hp), /*interleaved=*/false) {
        rope_ = read_mrope(hp, heads_.head_dim);
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_feed_forward(LayerWeights(w, i), info().width, n_ffn));
    }

protected:
    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::silu);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_qwen2vl(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Qwen2Vl>(hparams, weights);
}

}  // namespace plait
