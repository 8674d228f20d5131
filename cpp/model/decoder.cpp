#include "model/decoder.h"

namespace plait {

Decoder::Decoder(const Hparams& hp, const Weights& w, ModelForm form)
    : Transformer(hp, w, std::move(form)),
      output_(w.find("output.weight", {info().n_vocab, info().width})),
      output_bias_(w.find("output.bias", {info().n_vocab})) {
    if (!output_) output_ = embedding_;
    if (!hp.flag("attention.causal", true))
        hp.refuse("attention.causal",
                  "expected true: tokens of a decoder attend only to earlier tokens");
}

void Decoder::build_decoder(Step& step) const {
    Value x = step.keep_outputs(layers(step, enter(step)));
    if (!step.layers().has_last(info().n_layers)) return step.emit_passed(x);
    x = normalize(step, x, output_norm_);
    step.emit_hidden(x);
    if (!step.wants_logits()) return;
    Value logits = linear(x, step.weight(output_), step.weight(output_bias_));
    if (form_.logit_scale != 1.0f) logits = scale(logits, form_.logit_scale);
    if (form_.logit_softcap > 0.0f) logits = softcap(logits, form_.logit_softcap);
    step.emit_logits(logits);
}

}  // namespace plait
