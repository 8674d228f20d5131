// "Exclude top choices": with a probability, all tokens at least `threshold` likely go but the least
// likely of them. p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/6335
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct Xtc {
    double probability;
    double threshold;

    // `drawn`: uniform in [0, 1).
    void apply(Candidates& candidates, double drawn) const;
};

}  // namespace plait::sampling
