// Logits divided by the temperature; 0 keeps the best token alone.
//
// Dynamic: low + (high - low) * (H / log n)^exponent for `range` around the temperature, H being the
// entropy of the n tokens that are left: sharp where the model is sure.
// kalomaze 2023, https://github.com/ggml-org/llama.cpp/pull/4972
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct Temperature {
    double value = 1;
    double range = 0;
    double exponent = 1;

    void apply(Candidates& candidates) const;

private:
    double of(const Candidates& candidates) const;
};

}  // namespace plait::sampling
