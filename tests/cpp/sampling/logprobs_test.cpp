#include "sampling/candidates.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "support/odd_values.h"

namespace plait::sampling {
namespace {

double logprob(const std::vector<float>& row, int32_t token) {
    const std::array tokens{token};
    std::array<double, 1> out{};
    token_logprobs(row, tokens, out);
    return out[0];
}

TEST(Logprobs, AreThoseOfSoftmax) {
    const std::vector<float> rows{0, 1, 2, -kInf, 5, 5};
    const std::array<int32_t, 2> tokens{2, 1};
    std::array<double, 2> out{};
    token_logprobs(rows, tokens, out);
    EXPECT_NEAR(out[0], 2 - std::log(1 + std::exp(1.0) + std::exp(2.0)), 1e-14);
    EXPECT_NEAR(out[1], -std::log(2.0), 1e-14);
    EXPECT_EQ(logprob({0, -kInf}, 1), -kInf);
    EXPECT_NEAR(logprob({3e38f, 3e38f}, 0), -std::log(2.0), 1e-14);
}

TEST(Logprobs, RefuseRowsThatAreNone) {
    EXPECT_THROW(logprob({kNan, 1}, 1), InvalidArgument);
    EXPECT_THROW(logprob({1, kNan}, 0), InvalidArgument);
    EXPECT_THROW(logprob({1, kInf}, 0), InvalidArgument);
    EXPECT_THROW(logprob({-kInf, -kInf}, 0), InvalidArgument);
}

}  // namespace
}  // namespace plait::sampling
