// A head that scores sequences: of a classifier or a reranker, on what pooling made of a sequence.
#pragma once

#include "model/blocks/norm.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Wout n(how(Wcls h + bcls)) + bout; either matrix may be absent, and the norm.
struct ScoreHead {
    Weight dense, dense_bias;  // [width, width], [width]
    NormWeights norm;          // [width]
    Weight out, out_bias;      // [n_scores, width], [n_scores]
    Activation how = Activation::tanh;
};
// Scores of a sequence; 0 where the file has no head.
int count_scores(const Weights& w, int width);
ScoreHead read_score_head(const Weights& w, int width, int n_scores, Activation how);

// [n, width] -> [n, n_scores]
Value score(Step& step, Value x, const ScoreHead& head, const Norm& norm);

}  // namespace plait
