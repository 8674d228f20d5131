// Per-layer embeddings of Gemma 3n, https://ai.google.dev/gemma/docs/gemma-3n: in addition to its
// embedding, each token has a small vector for every layer. With the tables E of embeddings and E'
// of these vectors:
//
//   p = (sqrt(k) E'[token] + n(W x0 / sqrt(width))) / sqrt(2)      x0: the embedding; k elements
//   y = n(Wout (gelu(Wgate x) * p_i))                              in layer i; n = RMSNorm
#pragma once

#include <string_view>
#include <vector>

#include "graph/ops.h"
#include "model/blocks/norm.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Why layers of models that may have them cannot run without the earlier ones.
inline constexpr std::string_view kSharedByLayers =
    "later layers read per-layer embeddings of the tokens, and keys and values of earlier layers";

class PerLayerEmbedding {
public:
    PerLayerEmbedding(const Hparams& hparams, const Weights& weights, const ModelInfo& info);

    // p of all layers, from the input of the first. [n, layers k]
    Value vectors(Step& step, Value x, const Norm& norm) const;
    // y, from x and the result of vectors(). [n, width]
    Value operator()(Step& step, int layer, Value x, Value vectors, const Norm& norm) const;

private:
    struct Layer {
        Weight gate, out;   // [k, width], [width, k]
        NormWeights after;  // [width]
    };

    int size_;               // k
    Weight table_;           // [vocab, layers k]
    Weight projection_;      // [layers k, width]
    NormWeights projected_;  // [k]
    std::vector<Layer> layers_;
};

}  // namespace plait
