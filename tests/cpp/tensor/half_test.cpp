#include "tensor/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/odd_values.h"

namespace plait {
namespace {

// What a binary16 pattern means, by the definition in IEEE 754 and independent of bit tricks.
double meaning_of_f16(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                             : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                              : std::ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryF16MeansWhatIeee754Says) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto half = static_cast<uint16_t>(i);
        const double expected = meaning_of_f16(half);
        const float got = f16_to_f32(half);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(got)) << i;
        } else {
            EXPECT_EQ(got, expected) << i;
        }
        EXPECT_EQ(std::signbit(got), (half & 0x8000) != 0) << i;
    }
}

TEST(Half, EveryF16SurvivesTheRoundTrip) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto half = static_cast<uint16_t>(i);
        const bool nan = (half & 0x7FFF) > 0x7C00;
        EXPECT_EQ(f32_to_f16(f16_to_f32(half)), nan ? half | 0x200 : half) << i;
    }
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto half = static_cast<uint16_t>(i);
        const bool nan = (half & 0x7FFF) > 0x7F80;
        EXPECT_EQ(f32_to_bf16(bf16_to_f32(half)), nan ? half | 0x40 : half) << i;
    }
}

// Between each two neighbouring values: the halfway point goes to the even one, a bit less goes
// down and a bit more goes up.
template <typename Widen, typename Narrow>
void expect_nearest_even(uint16_t largest, Widen widen, Narrow narrow) {
    for (uint32_t i = 0; i < largest; ++i) {
        const auto low = static_cast<uint16_t>(i), high = static_cast<uint16_t>(i + 1);
        const double middle = (double{widen(low)} + double{widen(high)}) / 2;
        const auto tie = static_cast<float>(middle);
        ASSERT_EQ(tie, middle) << i;
        EXPECT_EQ(narrow(tie), i % 2 == 0 ? low : high) << i;
        EXPECT_EQ(narrow(-tie), (i % 2 == 0 ? low : high) | 0x8000) << i;
        EXPECT_EQ(narrow(std::nextafter(tie, 0.0f)), low) << i;
        EXPECT_EQ(narrow(std::nextafter(tie, kInf)), high) << i;
    }
}

TEST(Half, F16RoundsToNearestEven) { expect_nearest_even(0x7BFF, f16_to_f32, f32_to_f16); }

TEST(Half, Bf16RoundsToNearestEven) { expect_nearest_even(0x7F7F, bf16_to_f32, f32_to_bf16); }

TEST(Half, TooLargeBecomesInfinityAndTooSmallZero) {
    EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
    EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
    EXPECT_EQ(f32_to_f16(kInf), 0x7C00);
    EXPECT_EQ(f32_to_f16(0x1p-25f), 0);
    EXPECT_EQ(f32_to_f16(-0x1p-149f), 0x8000);
    EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
    EXPECT_EQ(f32_to_bf16(-kInf), 0xFF80);
}

TEST(Half, NanStaysNan) {
    // The payload is in bits that do not fit: cutting it off must not leave an infinity.
    const auto hidden = std::bit_cast<float>(0x7F800001u);
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(hidden))));
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(hidden))));
    EXPECT_TRUE(std::isnan(f16_to_f32(0x7C01)));
}

}  // namespace
}  // namespace plait
