// Tokens that were there already become less likely.
//
// Repetition: a positive logit is divided by the penalty, another multiplied; Keskar et al. 2019,
// "CTRL", arXiv:1909.05858, equation 3, as transformers and llama.cpp read it.
// Frequency and presence: logit - count * frequency - (count > 0) * presence; OpenAI's API reference.
#pragma once

#include <cstdint>

#include "sampling/candidates.h"
#include "sampling/history.h"

namespace plait::sampling {

struct Penalties {
    double repetition = 1;
    double presence = 0;
    double frequency = 0;
    int64_t last_n = -1;  // how many tokens back to look; -1: all

    void apply(Candidates& candidates, const History& history) const;
};

}  // namespace plait::sampling
