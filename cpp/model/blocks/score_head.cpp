#include "model/blocks/score_head.h"

#include "base/error.h"
#include "base/text.h"

namespace plait {

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

Value score(Step& step, Value x, const ScoreHead& head, const Norm& norm) {
    if (head.dense) {
        x = activate(linear(x, step.weight(head.dense), step.weight(head.dense_bias)), head.how);
        if (head.norm.weight) x = normalize(step, x, head.norm, norm);
    }
    return head.out ? linear(x, step.weight(head.out), step.weight(head.out_bias)) : x;
}

}  // namespace plait
