// Falcon-H1. Zuo et al. 2025, arXiv:2507.22448: in every layer attention and Mamba-2 stand side by
// side. The model's multipliers are part of its weights.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x)) + mamba2(n(x))     n = RMSNorm
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                                 SwiGLU
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

enum Slot : int { kKeys, kStates };  // of a layer's memory

class FalconH1 final : public Decoder {
public:
    FalconH1(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::halves)) {
        for (int i = 0; i < info().n_layers; ++i)
            mamba_.emplace_back(hp, LayerWeights(w, i), info().width);
    }

protected:
    std::vector<StateSpec> layer_memory(int i) const override {
        return {attention_spec(attention_form(i)), mamba_[static_cast<size_t>(i)].spec()};
    }

    Value mixer(Step& step, int i, Value h) const override {
        const Value attended = Decoder::mixer(step, i, h);
        return attended + mamba_[static_cast<size_t>(i)](step, i, kStates, h, form_.norm);
    }

private:
    std::vector<Mamba2Mixer> mamba_;  // by layer
};

}  // namespace

std::unique_ptr<Model> make_falcon_h1(const Hparams& hp, const Weights& w) {
    return std::make_unique<FalconH1>(hp, w);
}

}  // namespace plait
