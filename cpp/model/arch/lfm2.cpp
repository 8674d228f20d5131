// LFM2. Liquid AI 2025, arXiv:2511.23404: the mixer of most layers is a short gated convolution,
// whose state is its most recent inputs; the others have attention. n = RMSNorm.
//
//   b, c, u = Win n(x);  x += Wout (c * conv(b * u))
//   or  x += Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), Wv n(x))
#include "base/text.h"
#include "model/decoder.h"

namespace plait {
namespace {

class ConvMixer {
public:
    ConvMixer(const Hparams& hp, const LayerWeights& w, int width)
        : width_(width), taps_(hp.count("shortconv.l_cache")) {
        if (taps_ < 2) hp.refuse("shortconv.l_cache", text("expected 2 or more, got ", taps_));
        in_ = w.get("shortconv.in_proj.weight", {3 * width_, width_});
        conv_ = w.get("shortconv.conv.weight", {width_, taps_});
        out_ = w.get("shortconv.out_proj.weight", {width_, width_});
    }

    RecurrentSpec spec() const { return {.elements = {(taps_ - 1) * width_}}; }

    Value operator()(Step& step, int layer, int slot, Value x, const Norm&) const {
        const Value bcu = linear(x, step.weight(in_));
        const Value bu = slice(bcu, 0, width_) * slice(bcu, 2 * width_, width_);
        const Value y = short_conv(bu, step.weight(conv_), {}, step.states(layer, slot, 0));
        const Value gated = slice(bcu, width_, width_) * step.name(y, Role::conv, layer);
        return step.name(linear(gated, step.weight(out_)), Role::mixer_out, layer);
    }

private:
    int64_t width_;
    int taps_;
    Weight in_, conv_, out_;  // [3 width, width], [width, taps], [width, width]
};

ModelForm lfm2_form(const Hparams& hp, const Weights& w) {
    ModelForm form =
        ModelForm::hybrid(hp, w, Norm::rms(hp), RopePairs::halves, {.qk_norm = QkNorm::shared});
    form.output_norm = "token_embd_norm";
    return form;
}

}  // namespace

//   x += Wdown (silu(Wgate n(x)) * Wup n(x))                          SwiGLU
std::unique_ptr<Model> make_lfm2(const Hparams& hp, const Weights& w) {
    ModelForm form = lfm2_form(hp, w);
    form.set_windows(read_windows(hp, form.info.n_layers, 0));
    return std::make_unique<RecurrentDecoder<ConvMixer>>(hp, w, std::move(form));
}

// LFM2-8B-A1B. Liquid AI 2025: a mixture of experts whose first layers are dense.
//
//   x += sum_e p_e f_e(n(x))     e: the largest of p + bias
//   p = sigmoid(Wrouter n(x)), divided by the sum of the chosen
std::unique_ptr<Model> make_lfm2moe(const Hparams& hp, const Weights& w) {
    ModelForm form = lfm2_form(hp, w);
    form.mixture = read_shared_mixture(hp, form.info.n_layers,
                                       {.gating = Gating::sigmoid, .renormalize = true});
    return std::make_unique<RecurrentDecoder<ConvMixer>>(hp, w, std::move(form));
}

}  // namespace plait
