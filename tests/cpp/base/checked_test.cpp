#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace plait {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Checked, AddsUpToTheLargestValueAndNoFurther) {
    EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
    EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
    EXPECT_EQ(checked_add(kMax, kMax), std::nullopt);
}

TEST(Checked, MultipliesUpToTheLargestValueAndNoFurther) {
    EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{1} << 31), uint64_t{1} << 63);
    EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
    EXPECT_EQ(checked_mul(kMax, 0), 0u);
}

TEST(Checked, AgreesWithArithmeticOf128Bits) {
    __extension__ using Wide = unsigned __int128;
    std::mt19937_64 random(1);
    for (int i = 0; i < 100'000; ++i) {
        // Magnitudes of every size, so that both outcomes are common.
        const uint64_t a = random() >> (random() % 64), b = random() >> (random() % 64);
        const Wide sum = Wide{a} + b, product = Wide{a} * b;
        EXPECT_EQ(checked_add(a, b).has_value(), sum <= kMax);
        EXPECT_EQ(checked_mul(a, b).has_value(), product <= kMax);
        EXPECT_EQ(checked_add(a, b).value_or(0), sum <= kMax ? static_cast<uint64_t>(sum) : 0);
        EXPECT_EQ(checked_mul(a, b).value_or(0),
                  product <= kMax ? static_cast<uint64_t>(product) : 0);
    }
}

TEST(Checked, AlignsToPowersOfTwo) {
    EXPECT_EQ(checked_align(0, 32), 0u);
    EXPECT_EQ(checked_align(1, 32), 32u);
    EXPECT_EQ(checked_align(32, 32), 32u);
    EXPECT_EQ(checked_align(kMax - 31, 32), kMax - 31);
    EXPECT_EQ(checked_align(kMax - 30, 32), std::nullopt);
    EXPECT_EQ(align_up(33, 32), 64u);
    EXPECT_EQ(align_up(10, 3), 12u);
}

}  // namespace
}  // namespace plait
