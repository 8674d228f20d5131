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
    for (int i = info().n_layers; i < info().n_all_layers(); ++i)
        drafting_.push_back(read_drafting(w, i));
}

// A table of embeddings of its own (nextn.embed_tokens) is for the caller.
Decoder::Drafting Decoder::read_drafting(const Weights& w, int i) const {
    const LayerWeights layer(w, i);
    const int width = info().width;
    Drafting drafting{
        .token_norm = read_norm(layer, "nextn.enorm", width),
        .hidden_norm = read_norm(layer, "nextn.hnorm", width),
        .output_norm = output_norm_,
        .projection = layer.get("nextn.eh_proj.weight", {width, 2 * width}),
        .output = layer.find("nextn.shared_head_head.weight", {info().n_vocab, width}),
    };
    if (layer.has("nextn.shared_head_norm.weight"))
        drafting.output_norm = read_norm(layer, "nextn.shared_head_norm", width);
    if (!drafting.output) drafting.output = output_;
    layer.find("nextn.embed_tokens.weight", {info().n_vocab, width});
    return drafting;
}

void Decoder::build_decoder(Step& step) const {
    if (info().drafts(step.layers())) return build_drafting(step);
    const Value x = step.keep_outputs(layers(step, enter(step)));
    if (!step.layers().has_last(info().n_layers)) return step.emit_passed(x);
    emit(step, x, output_norm_, output_);
}

// Multi-token prediction. DeepSeek-AI 2024, arXiv:2412.19437, section 2.2. e: the embedding of the
// token after the one that h belongs to; n = RMSNorm.
//
//   x = layer(Wproj [n(e), n(h)])
void Decoder::build_drafting(Step& step) const {
    const int i = step.layers().begin;
    const Drafting& w = drafting_[static_cast<size_t>(i - info().n_layers)];
    const Value hidden = normalize(step, step.passed(info(), 0), w.hidden_norm);
    const Value token = normalize(step, step.passed(info(), 1), w.token_norm);
    const Value x = linear(concat(token, hidden), step.weight(w.projection));
    emit(step, step.keep_outputs(step.name(layer(step, i, x), Role::l_out, i)), w.output_norm,
         w.output);
}

void Decoder::emit(Step& step, Value x, const NormWeights& norm, const Weight& output) const {
    x = normalize(step, x, norm);
    step.emit_hidden(x);
    if (!step.wants_logits()) return;
    Value logits = linear(x, step.weight(output), step.weight(output_bias_));
    if (form_.logit_scale != 1.0f) logits = scale(logits, form_.logit_scale);
    if (form_.logit_softcap > 0.0f) logits = softcap(logits, form_.logit_softcap);
    step.emit_logits(logits);
}

}  // namespace plait
