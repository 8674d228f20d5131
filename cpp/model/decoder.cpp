#include "model/decoder.h"

#include "base/error.h"

namespace plait {

Decoder::Decoder(const Hparams& hp, const Weights& w, const Norm& norm,
                 std::string_view output_norm)
    : Decoder(read_info(hp, w), w, norm, output_norm) {}

Decoder::Decoder(ModelInfo info, const Weights& w, const Norm& norm, std::string_view output_norm)
    : Model(std::move(info)),
      norm_(norm),
      embedding_(w.get("token_embd.weight", {this->info().n_vocab, this->info().width})),
      output_norm_(read_norm(w, output_norm, this->info().width)),
      output_(w.find("output.weight", {this->info().n_vocab, this->info().width})),
      output_bias_(w.find("output.bias", {this->info().n_vocab})) {
    if (!output_) output_ = embedding_;
}

Value Decoder::embed(Step& step) const { return step.embed(embedding_, embedding_scale_); }

Value Decoder::embed_scaled(Step& step) const {
    const Value x = step.embed(embedding_);
    return embedding_scale_ == 1.0f ? x : step.name(scale(x, embedding_scale_), Role::inp_embd);
}

Value Decoder::layer(Step&, int, Value) const {
    throw InternalError("a decoder says neither what a layer does nor what all do");
}

Value Decoder::layers(Step& step, Value x) const {
    for (int i = 0; i < info().n_layers; ++i) x = step.name(layer(step, i, x), Role::l_out, i);
    return x;
}

void Decoder::build_decoder(Step& step) const {
    Value x = layers(step, embed(step));
    x = normalize(step, step.keep_outputs(x), output_norm_);
    step.emit_hidden(x);
    if (!step.wants_logits()) return;
    Value logits = linear(x, step.weight(output_), step.weight(output_bias_));
    if (logit_scale_ != 1.0f) logits = scale(logits, logit_scale_);
    if (logit_softcap_ > 0.0f) logits = softcap(logits, logit_softcap_);
    step.emit_logits(logits);
}

}  // namespace plait
