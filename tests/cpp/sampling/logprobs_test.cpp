#include "sampling/candidates.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace plait::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double logprob(const std::vector<float>& row, int32_t token) {
    const std::array tokens{token};
    std::array<double, 1> out{};
    token_logprobs(row, tokens, out);
    return out[0];
}

TEST(Logprobs, AreThoseOfSoftmax) {
    const std::vector<float> rows{0, 1, 2, -kInfinity, 5, 5};
    const std::array<int32_t, 2> tokens{2, 1};
    std::array<double, 2> out{};
    token_logprobs(rows, tokens, out);
    EXPECT_NEAR(out[0], 2 - std::log(1 + std::exp(1.0) + std::exp(2.0)), 1e-14);
    EXPECT_NEAR(out[1], -std::log(2.0), 1e-14);
    EXPECT_EQ(logprob({0, -kInfinity}, 1), -kInfinity);
    EXPECT_NEAR(logprob({3e38f, 3e38f}, 0), -std::log(2.0), 1e-14);
}

TEST(Logprobs, RefuseRowsThatAreNone) {
    EXPECT_THROW(logprob({std::nanf(""), 1}, 1), InvalidArgument);
    EXPECT_THROW(logprob({1, std::nanf("")}, 0), InvalidArgument);
    EXPECT_THROW(logprob({1, kInfinity}, 0), InvalidArgument);
    EXPECT_THROW(logprob({-kInfinity, -kInfinity}, 0), InvalidArgument);
}

}  // namespace
}  // namespace plait::sampling
