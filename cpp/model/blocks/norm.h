// The norms between blocks.
#pragma once

#include "graph/ops.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

enum class NormKind : uint8_t { rms, layer };

// A model's way of normalising, the same in every layer.
struct Norm {
    NormKind kind = NormKind::rms;
    float epsilon = 0.0f;

    static Norm rms(const Hparams& hparams);    // attention.layer_norm_rms_epsilon
    static Norm layer(const Hparams& hparams);  // attention.layer_norm_epsilon
};

struct NormWeights {
    Weight weight, bias;  // [width] each; bias is nothing where the file has none
};
// "{name}.weight" and "{name}.bias".
NormWeights read_norm(const LayerWeights& w, std::string_view name, int64_t width);
NormWeights read_norm(const Weights& w, std::string_view name, int64_t width);

Value normalize(Step& step, Value x, const NormWeights& w, const Norm& how);

}  // namespace plait
