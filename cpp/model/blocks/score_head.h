// A head that scores sequences: of a classifier or a reranker, on what pooling made of a sequence.
#pragma once

#include "model/blocks/norm.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Wout n(act(Wcls h + bcls)) + bout. Either matrix and the norm are optional.
struct ScoreHead {
    Weight dense, dense_bias;  // [width, width], [width]
    NormWeights norm;          // [width]
    Weight out, out_bias;      // [n_scores, width], [n_scores]
    Activation how = Activation::tanh;
};
// The number of scores per sequence; 0 if the file has no head.
int count_scores(const Weights& w, int width);
ScoreHead read_score_head(const Weights& w, int width, int n_scores, Activation how);

// [n, width] -> [n, n_scores]
Value score(Step& step, Value x, const ScoreHead& head, const Norm& norm);

}  // namespace plait
