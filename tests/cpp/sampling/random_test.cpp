#include "sampling/random.h"

#include <gtest/gtest.h>

#include <set>

namespace plait::sampling {
namespace {

using Four = std::array<uint32_t, 4>;

// The known answers of the authors' library: Random123, tests/kat_vectors, "philox4x32 10".
TEST(Random, PhiloxGivesTheKnownAnswers) {
    EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    const uint32_t ones = 0xffffffff;
    EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
              (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, NumbersDifferBySeedSequenceStepAndPurpose) {
    std::set<double> seen;
    for (const uint64_t seed : {0ull, 1ull, 1ull << 63})
        for (const uint64_t sequence : {0ull, 1ull, 1ull << 40})
            for (const uint64_t step : {0ull, 1ull, 1ull << 40})
                for (const Draw purpose : {Draw::token, Draw::xtc}) {
                    const double x = uniform(seed, sequence, step, purpose);
                    EXPECT_GE(x, 0);
                    EXPECT_LT(x, 1);
                    seen.insert(x);
                }
    EXPECT_EQ(seen.size(), 3u * 3 * 3 * 2);
}

TEST(Random, NumbersAreUniform) {
    constexpr int kBins = 64;
    constexpr int kDraws = 64 * 1024;
    std::array<int, kBins> counts{};
    for (uint64_t step = 0; step < kDraws; ++step)
        ++counts[static_cast<size_t>(uniform(1, 2, step, Draw::token) * kBins)];
    double statistic = 0;
    for (const int n : counts) statistic += (n - 1024.0) * (n - 1024.0) / 1024.0;
    EXPECT_LT(statistic, 63 + 6 * 11.3);  // chi-squared: mean 63, deviation sqrt(2 * 63)
}

}  // namespace
}  // namespace plait::sampling
