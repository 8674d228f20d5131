// "Don't repeat yourself": a token that would continue a repetition loses multiplier * base^(n - allowed),
// n being the length of the longest end of the text that stood before that token earlier, where n is
// at least `allowed`. A repetition does not reach across a breaker.
//
// p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677
#pragma once

#include <cstdint>
#include <unordered_set>

#include "sampling/candidates.h"
#include "sampling/history.h"

namespace plait::sampling {

struct Dry {
    double multiplier = 0;
    double base = 1.75;
    int64_t allowed_length = 2;
    int64_t last_n = -1;  // how many tokens back to look; -1: all
    std::unordered_set<int32_t> breakers;

    void apply(Candidates& candidates, const History& history) const;
};

}  // namespace plait::sampling
