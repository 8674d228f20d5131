// The norms between blocks.
#pragma once

#include <string_view>

#include "graph/ops.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

enum class NormKind : uint8_t { rms, layer };

// The kind of norm of a model, and its epsilon. All layers use the same.
struct Norm {
    NormKind kind = NormKind::rms;
    float epsilon = 0.0f;
    bool has_weights = true;

    static Norm rms(const Hparams& hparams);    // attention.layer_norm_rms_epsilon
    static Norm layer(const Hparams& hparams);  // attention.layer_norm_epsilon
};

struct NormWeights {
    Weight weight, bias;   // [width] each; optional
    bool applies = false;  // false: the layer does not have this norm
};
// Reads "{name}.weight" and, if the file has it, "{name}.bias". Some converters write "{name}"
// without ".weight".
NormWeights read_norm(const LayerWeights& w, std::string_view name, int64_t width);
NormWeights read_norm(const Weights& w, std::string_view name, int64_t width);

// As above, but does not read weights if the norms of the model have none.
NormWeights read_norm(const LayerWeights& w, std::string_view name, int64_t width, const Norm& how);
NormWeights read_norm(const Weights& w, std::string_view name, int64_t width, const Norm& how);

Value normalize(Step& step, Value x, const NormWeights& w, const Norm& how);

}  // namespace plait
