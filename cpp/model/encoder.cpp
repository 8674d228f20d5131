#include "model/encoder.h"

namespace plait {

ModelInfo Encoder::encoder_info(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    if (hp.flag("attention.causal", false))
        hp.refuse("attention.causal",
                  "expected false, as tokens of an encoder see those after them");
    info.causal = false;
    info.has_decoder = false;
    info.n_scores = count_scores(w, info.width);
    return info;
}

Encoder::Encoder(ModelInfo info, const Hparams& hp, const Weights& w, Activation head)
    : Model(std::move(info)),
      norm_(Norm::layer(hp)),
      embedding_(w.get("token_embd.weight", {this->info().n_vocab, this->info().width})),
      embedding_norm_(read_norm(w, "token_embd_norm", this->info().width)),
      head_(read_score_head(w, this->info().width, this->info().n_scores, head)) {
    const int width = this->info().width;
    if (w.has("token_types.weight"))
        types_ = w.get("token_types.weight",
                       {hp.metadata().integer("tokenizer.ggml.token_type_count"), width});
    if (this->info().n_positions > 0)
        positions_ = w.get("position_embd.weight", {this->info().n_positions, width});
}

Value Encoder::embed(Step& step) const {
    Value x = step.embed(embedding_);
    if (types_) x = x + weight_row(step.weight(types_), 0);
    if (positions_) x = x + plait::embed(step.weight(positions_), step.positions());
    return normalize(step, x, embedding_norm_);
}

void Encoder::build_decoder(Step& step) const {
    Value x = embed(step);
    for (int i = 0; i < info().n_layers; ++i) x = step.name(layer(step, i, x), Role::l_out, i);
    x = step.keep_outputs(x);
    step.emit_hidden(output_norm_.weight ? normalize(step, x, output_norm_) : x);
}

void Encoder::build_scores(Step& step) const {
    step.emit_scores(score(step, step.pooled(info().width), head_, norm_));
}

}  // namespace plait
