#include "model/encoder.h"

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// Returns the number of scores per sequence; 0 if the file has no scoring head.
int count_scores(const Weights& w, int width) {
    const gguf::TensorInfo* out = w.file().find("cls.output.weight");
    if (out == nullptr) return w.has("cls.weight") ? width : 0;
    const int64_t n =
        out->type.shape.elements() / width;  // the axis of a single score may be missing
    if (n < 1 || n > Hparams::kMaxSize)
        throw ModelError(text("cls.output.weight: expected rows of ", width, ", got ",
                              to_string(out->type.shape)));
    return static_cast<int>(n);
}

ScoreHead read_score_head(const Weights& w, int width, int n_scores, Activation how) {
    ScoreHead head{.how = how};
    head.dense = w.find("cls.weight", {width, width});
    head.dense_bias = w.find("cls.bias", {width});
    if (w.has("cls.norm.weight")) head.norm = read_norm(w, "cls.norm", width);
    head.out = w.find("cls.output.weight", {n_scores, width});
    head.out_bias = w.find("cls.output.bias", {n_scores});
    return head;
}

// [n, width] -> [n, n_scores]
Value score(Step& step, Value x, const ScoreHead& head, const Norm& norm) {
    if (head.dense) {
        x = activate(linear(x, step.weight(head.dense), step.weight(head.dense_bias)), head.how);
        if (head.norm.applies) x = normalize(step, x, head.norm, norm);
    }
    return head.out ? linear(x, step.weight(head.out), step.weight(head.out_bias)) : x;
}

}  // namespace

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
    const Value x = step.keep_outputs(layers(step, enter(step)));
    if (!step.layers().has_last(info().n_layers)) return step.emit_passed(x);
    step.emit_hidden(output_norm_.weight ? normalize(step, x, output_norm_) : x);
}

void Encoder::build_scores(Step& step) const {
    step.emit_scores(score(step, step.pooled(info().width), head_, form_.norm));
}

}  // namespace plait
