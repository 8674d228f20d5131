// Mirostat 2: tokens more surprising than mu bits go; after the draw mu moves against the error
// between the drawn token's surprise, among those that were left, and the target tau.
// Basu et al. 2021, arXiv:2007.14966, algorithm 2.
#pragma once

#include "sampling/candidates.h"
#include "sampling/history.h"

namespace plait::sampling {

struct Mirostat {
    double tau;  // bits
    double eta;

    void apply(Candidates& candidates, const History& history) const;
    // `probability`: of the token that was drawn.
    void accept(History& history, double probability) const;

private:
    double mu(const History& history) const { return history.mirostat_mu.value_or(2 * tau); }
};

}  // namespace plait::sampling
