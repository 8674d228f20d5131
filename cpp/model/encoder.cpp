#include "model/encoder.h"

namespace plait {

ModelInfo read_encoder_info(const Hparams& hp, const Weights& w) {
    ModelInfo info = read_info(hp, w);
    if (hp.flag("attention.causal", false))
        hp.refuse("attention.causal",
                  "expected false: tokens of an encoder also attend to later tokens");
    info.causal = false;
    info.has_decoder = false;
    info.n_scores = count_scores(w, info.width);
    return info;
}

ModelForm encoder_form(ModelInfo info, const Hparams& hp, RopePairs pairs,
                       const LayerNorms& norms) {
    ModelForm form(std::move(info), hp, Norm::layer(hp), pairs, {.within = true});
    form.norms = norms;
    form.has_embedding_norm = true;
    form.output_norm = {};
    return form;
}

Encoder::Encoder(const Hparams& hp, const Weights& w, ModelForm form, Activation head)
    : Transformer(hp, w, std::move(form)),
      head_(read_score_head(w, info().width, info().n_scores, head)) {
    if (w.has("token_types.weight"))
        token_types_ =
            w.get("token_types.weight",
                  {hp.metadata().integer("tokenizer.ggml.token_type_count"), info().width});
}

void Encoder::build_decoder(Step& step) const {
    const Value x = step.keep_outputs(layers(step, embed(step)));
    step.emit_hidden(output_norm_.weight ? normalize(step, x, output_norm_) : x);
}

void Encoder::build_scores(Step& step) const {
    step.emit_scores(score(step, step.pooled(info().width), head_, form_.norm));
}

}  // namespace plait
