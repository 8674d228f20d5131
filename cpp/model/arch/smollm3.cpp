// SmolLM3. Hugging Face 2025, https://huggingface.co/blog/smollm3: LLaMA whose every fourth layer
// knows no positions (NoPE: arXiv:2501.18795).
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))      n = RMSNorm
//   x += Wdown . (silu(Wgate . n(x)) * Wup . n(x))                     SwiGLU
#include "model/blocks/feed_forward.h"
#include "model/rotary_decoder.h"

namespace plait {
namespace {

class SmolLM3 final : public RotaryDecoder {
public:
    SmolLM3(const Hparams& hp, const Weights& w)
        : RotaryDecoder(hp, w, Norm::rms(hp), /*interleaved=*/true) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_feed_forward(LayerWeights(w, i), info().width, n_ffn));
    }

protected:
    // A shift turns the keys of every layer, also of those that know no positions: llama.cpp's does,
    // which reference logits follow. docs/decisions/0005
    bool rotates(int i) const override { return (i + 1) % 4 != 0; }

    Value block(Step& step, int i, Value x) const override {
        return feed_forward(step, i, x, layers_[static_cast<size_t>(i)], Activation::silu);
    }

private:
    std::vector<FeedForwardWeights> layers_;
};

}  // namespace

std::unique_ptr<Model> make_smollm3(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<SmolLM3>(hparams, weights);
}

}  // namespace plait
