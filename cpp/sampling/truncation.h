// Sampling stages that remove candidates.
#pragma once

#include <cstdint>

#include "sampling/candidates.h"

namespace plait::sampling {

// Keeps the k highest logits; among equal logits, the lower token ids.
// Fan et al. 2018, arXiv:1805.04833.
struct TopK {
    int64_t k;

    void apply(Candidates& candidates) const;
};

// Keeps the smallest set of most likely tokens with a total probability of at least p.
// Holtzman et al. 2020, arXiv:1904.09751.
struct TopP {
    double p;

    void apply(Candidates& candidates) const;
};

// Keeps tokens that are at least p times as likely as the most likely one.
// Nguyen et al. 2024, arXiv:2407.01082.
struct MinP {
    double p;

    void apply(Candidates& candidates) const;
};

// Keeps tokens whose logit is at most n standard deviations (over the remaining logits) below the
// highest.
// Tang et al. 2024, "Top-n-sigma: not all logits are you need", arXiv:2411.07641.
struct TopNSigma {
    double n;

    void apply(Candidates& candidates) const;
};

// Locally typical sampling: sorts tokens by |-log p(i) - entropy| and keeps the shortest prefix
// with a total probability of at least p. Meister et al. 2022, arXiv:2202.00666.
struct Typical {
    double p;

    void apply(Candidates& candidates) const;
};

// "Exclude top choices": with the given probability, keeps only the least likely of the tokens with
// p(i) >= threshold. Tokens below the threshold remain.
// p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/6335
struct Xtc {
    double probability;
    double threshold;

    // `drawn`: a uniform random number in [0, 1).
    void apply(Candidates& candidates, double drawn) const;
};

// Mirostat 2: removes tokens with a surprise -log2 p(i) above mu, then moves mu against the error
// between the drawn token's surprise (after the removal) and the target tau.
// Basu et al. 2021, arXiv:2007.14966, algorithm 2.
struct Mirostat {
    double tau;  // bits
    double eta;  // learning rate of mu

    void apply(Candidates& candidates, const History& history) const;
    // Updates mu. `probability`: of the drawn token, among the remaining candidates.
    void accept(History& history, double probability) const;

private:
    double mu(const History& history) const { return history.mirostat_mu.value_or(2 * tau); }
};

}  // namespace plait::sampling
