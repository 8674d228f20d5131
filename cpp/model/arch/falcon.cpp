// TII's Falcon models.
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {

// Falcon. Almazrouei et al. 2023, arXiv:2311.16867: attention and feed-forward block are parallel,
// and one matrix holds q, k and v. The 40B model has a norm for each of the two, the 7B model one
// norm for both.
//
//   x += Wo attend(rope(q), rope(k), v) + Wdown gelu(Wup n(x))     [q, k, v] = Wqkv n'(x)
std::unique_ptr<Model> make_falcon(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves);
    form.parallel = true;
    form.norms = {.mixer_in = "attn_norm"};
    if (w.has("blk.0.attn_norm_2.weight"))
        form.norms = {.mixer_in = "attn_norm_2", .block_in = "attn_norm"};
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::gelu;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

namespace {

enum Slot : int { kKeys, kStates };  // of a layer's memory

// Falcon-H1. Zuo et al. 2025, arXiv:2507.22448: every layer has attention and Mamba-2 in parallel.
// The multipliers of the paper are included in the weights.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x)) + mamba2(n(x))     n = RMSNorm
//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                                 SwiGLU
class FalconH1 final : public Decoder {
public:
    FalconH1(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, ModelForm(hp, w, Norm::rms(hp), RopePairs::halves)) {
        for (int i = 0; i < info().n_layers; ++i)
            mamba_.emplace_back(hp, LayerWeights(w, i), info().width);
    }

protected:
    std::vector<StateSpec> layer_memory(int i) const override {
        std::vector<StateSpec> memory = attention_memory(attention_form(i));
        memory.emplace_back(mamba_[static_cast<size_t>(i)].spec());
        return memory;
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
