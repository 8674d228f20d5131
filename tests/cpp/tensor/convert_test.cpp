#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/fit.h"
#include "support/odd_values.h"
#include "tensor/half.h"
#include "tensor/search.h"

namespace plait {
namespace {

using test::Fit;
using test::name_of;
using test::normal_values;

// Knuth's 64-bit linear congruential generator, from 1: input that any language can repeat.
class Sequence {
public:
    uint64_t next() { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }

private:
    uint64_t state_ = 1;
};

// FNV-1a, one step a word.
class Digest {
public:
    void add(uint32_t word) { value_ = (value_ ^ word) * 1099511628211u; }
    uint64_t value() const { return value_; }

private:
    uint64_t value_ = 0xCBF29CE484222325u;
};

std::vector<std::byte> encoded(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
    quantize(dtype, values.data(), bytes.data(), values.size());
    return bytes;
}

std::vector<float> decoded(DType dtype, const std::vector<std::byte>& bytes, uint64_t elements) {
    std::vector<float> values(elements);
    dequantize(dtype, bytes.data(), values.data(), elements);
    return values;
}

struct Golden {
    DType dtype;
    uint64_t decoded;  // digest of the float bits that are not NaN
    uint64_t encoded;  // digest of the bytes; 0 if ggml's reference quantiser is not followed
};

// The digests were computed with dequantize_row_* and quantize_row_*_ref of ggml 0.20.0.
class Blocks : public testing::TestWithParam<Golden> {};

INSTANTIATE_TEST_SUITE_P(
    EveryType, Blocks,
    testing::Values(
        Golden{DType::q8_0, 0x2ed7e6c25f1a57e5, 0x37f4c62e69c16492},
        Golden{DType::q4_0, 0x925712bdf80d82a5, 0xdbb3ff21e9d8f338},
        Golden{DType::q4_1, 0x6e5f0ffc1339d8ff, 0x306997d474480284},
        Golden{DType::q5_0, 0x4765b2c170fb4b25, 0xf0ef62d4ad6c0f2e},
        Golden{DType::q5_1, 0xfd56919dc19732d6, 0xc4b6e3130143f025},
        Golden{DType::q2_k, 0x6b99d58b224674a8, 0}, Golden{DType::q3_k, 0xfb731a63caa454a5, 0},
        Golden{DType::q4_k, 0x7b1698df34d29bb9, 0}, Golden{DType::q5_k, 0xef926481a6efc3f1, 0},
        Golden{DType::q6_k, 0x60512d63fcc3ff6d, 0},
        Golden{DType::iq4_nl, 0x724130b9102f8be5, 0xc75c02931c972c5a},
        Golden{DType::iq4_xs, 0x1974254425392125, 0}, Golden{DType::mxfp4, 0xdc573ed9912ec325, 0},
        Golden{DType::iq2_xxs, 0xf2eaf82afadca6c1, 0}, Golden{DType::iq2_xs, 0x5b50dfcd1b154e31, 0},
        Golden{DType::iq2_s, 0xeb5a0c7b2d4b6f59, 0}, Golden{DType::iq3_xxs, 0x354fa35ca148ae9d, 0},
        Golden{DType::iq3_s, 0xaf1ec83ecab6f7e5, 0}, Golden{DType::iq1_s, 0xa079ca1b35e14345, 0},
        Golden{DType::iq1_m, 0xaf8e475c9d4bc265, 0}, Golden{DType::tq1_0, 0xdd521c83fadb1b25, 0},
        Golden{DType::tq2_0, 0x01bb70221e282725, 0}, Golden{DType::nvfp4, 0x62e9758b28fb6325, 0},
        Golden{DType::q1_0, 0x800778f8afb0b125, 0}, Golden{DType::q2_0, 0x99dd5bdf502f6a25, 0}),
    name_of<Golden>);

TEST_P(Blocks, DecodeToTheBitsOfGgml) {
    const DTypeInfo& type = info(GetParam().dtype);
    Sequence sequence;
    std::vector<std::byte> bytes(64 * type.block_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(sequence.next() >> 56);
    Digest digest;
    for (const float value : decoded(type.dtype, bytes, 64 * type.block_elements)) {
        if (!std::isnan(value)) digest.add(std::bit_cast<uint32_t>(value));
    }
    EXPECT_EQ(digest.value(), GetParam().decoded);
}

TEST_P(Blocks, EncodeToTheBytesOfGgml) {
    const DType dtype = GetParam().dtype;
    const bool searched = GetParam().encoded == 0 && can_search(dtype);  // see search_test.cpp
    EXPECT_EQ(can_quantize(dtype), searched || GetParam().encoded != 0);
    if (searched) return;
    Sequence sequence;
    std::vector<float> values(2048);
    for (float& value : values) {
        value = static_cast<float>(static_cast<int16_t>(sequence.next() >> 48)) / 8192;
    }
    if (!can_quantize(dtype)) {
        EXPECT_THROW(encoded(dtype, values), UnsupportedError);
        return;
    }
    Digest digest;
    for (const std::byte byte : encoded(dtype, values)) digest.add(static_cast<uint32_t>(byte));
    EXPECT_EQ(digest.value(), GetParam().encoded);
}

TEST_P(Blocks, AcceptWholeBlocksOnly) {
    const DTypeInfo& type = info(GetParam().dtype);
    std::vector<std::byte> bytes(type.block_bytes);
    std::vector<float> values(type.block_elements);
    EXPECT_THROW(dequantize(type.dtype, bytes.data(), values.data(), type.block_elements - 1),
                 InvalidArgument);
    EXPECT_NO_THROW(dequantize(type.dtype, nullptr, nullptr, 0));
}

struct Bound {
    DType dtype;
    double of_largest;  // greatest error of a value, as a part of its block's largest magnitude
};

class Encoders : public testing::TestWithParam<Bound> {};

// Half a step where steps are even: a scale type spans 2^bits - 1 steps, the minimum types at most
// twice the largest magnitude. The extreme opposite to the one that sets q4_0's and q5_0's scale
// may be cut by a whole step; iq4_nl's widest gap is 24 of 127. f16 scales add a part in 2048.
INSTANTIATE_TEST_SUITE_P(EveryCacheType, Encoders,
                         testing::Values(Bound{DType::f32, 0}, Bound{DType::f16, 1.0 / 2048},
                                         Bound{DType::bf16, 1.0 / 256},
                                         Bound{DType::q8_0, 0.5 / 127 + 1.0 / 2048},
                                         Bound{DType::q4_0, 1.0 / 8 + 1.0 / 2048},
                                         Bound{DType::q4_1, 1.0 / 15 + 4.0 / 2048},
                                         Bound{DType::q5_0, 1.0 / 16 + 1.0 / 2048},
                                         Bound{DType::q5_1, 1.0 / 31 + 4.0 / 2048},
                                         Bound{DType::iq4_nl, 0.2}),
                         name_of<Bound>);

TEST_P(Encoders, ComeBackWithinTheStep) {
    const auto [dtype, of_largest] = GetParam();
    for (const float deviation : {0.1f, 1.0f, 100.0f}) {  // scales that are normal f16
        const std::vector<float> values = normal_values(32 * 500, deviation);
        const std::vector<float> back = decoded(dtype, encoded(dtype, values), values.size());
        for (size_t begin = 0; begin < values.size(); begin += 32) {
            double largest = 0;
            for (size_t i = begin; i < begin + 32; ++i) {
                largest = std::max(largest, std::abs(double{values[i]}));
            }
            for (size_t i = begin; i < begin + 32; ++i) {
                EXPECT_NEAR(back[i], values[i], of_largest * largest)
                    << info(dtype).name << " value " << i;
            }
        }
    }
}

TEST_P(Encoders, KeepZeroZero) {
    const std::vector<float> zeros(64);
    EXPECT_EQ(decoded(GetParam().dtype, encoded(GetParam().dtype, zeros), 64), zeros);
}

// Whatever goes in, encoding is defined (the sanitisers watch) and a block nearby is untouched.
TEST_P(Encoders, AreDefinedForEveryFloat) {
    const DType dtype = GetParam().dtype;
    constexpr float kLargest = std::numeric_limits<float>::max();
    const std::vector<float> sound = normal_values(32, 1);
    const std::vector<float> expected = decoded(dtype, encoded(dtype, sound), 32);
    for (const float odd :
         {kNan, -kNan, kInf, -kInf, kLargest, -kLargest, 1e-45f, -1e-45f, 1e-38f}) {
        for (const size_t count : {1u, 31u, 32u}) {
            std::vector<float> values(32, 0.5f);
            for (size_t i = 0; i < count; ++i) values[i] = i % 2 == 0 ? odd : -odd;
            values.insert(values.end(), sound.begin(), sound.end());
            const std::vector<float> back = decoded(dtype, encoded(dtype, values), 64);
            EXPECT_EQ(std::vector(back.begin() + 32, back.end()), expected) << odd;
        }
    }
    std::mt19937 random(5);
    std::vector<float> anything(32 * 2000);
    for (float& value : anything) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    EXPECT_EQ(encoded(dtype, anything).size(), row_bytes(dtype, anything.size()));
}

TEST_P(Encoders, TakeBytesAtAnyAddress) {
    const DType dtype = GetParam().dtype;
    const std::vector<float> values = normal_values(96, 1);
    const std::vector<std::byte> expected = encoded(dtype, values);
    std::vector<std::byte> shifted(expected.size() + 1);
    quantize(dtype, values.data(), shifted.data() + 1, values.size());
    EXPECT_EQ(std::vector(shifted.begin() + 1, shifted.end()), expected);
    std::vector<float> back(values.size());
    dequantize(dtype, shifted.data() + 1, back.data(), back.size());
    EXPECT_EQ(back, decoded(dtype, expected, values.size()));
}

double squared_error(DType dtype, const std::vector<float>& values) {
    const std::vector<float> back = decoded(dtype, encoded(dtype, values), values.size());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        sum += (double{back[i]} - values[i]) * (double{back[i]} - values[i]);
    }
    return sum;
}

// Types whose groups have scales of their own, fitted by least squares.
class GroupEncoders : public testing::TestWithParam<Fit> {};

INSTANTIATE_TEST_SUITE_P(EveryType, GroupEncoders,
                         testing::Values(Fit{DType::q4_k, 0.0056}, Fit{DType::q6_k, 0.00034}),
                         name_of<Fit>);

TEST_P(GroupEncoders, ComeBackWithLittleError) {
    const auto [dtype, of_variance] = GetParam();
    for (const float deviation : {1e-3f, 1.0f, 100.0f}) {
        const std::vector<float> values = normal_values(256 * 200, deviation);
        EXPECT_LT(squared_error(dtype, values),
                  of_variance * deviation * deviation * static_cast<double>(values.size()));
    }
}

TEST_P(GroupEncoders, AreAsGoodForEveryShift) {
    const auto [dtype, of_variance] = GetParam();
    std::vector<float> values = normal_values(256 * 50, 1);
    for (float& value : values) value += 3;
    const double above = squared_error(dtype, values);
    for (float& value : values) value -= 6;
    const double below = squared_error(dtype, values);
    const double n = static_cast<double>(values.size());
    EXPECT_LT(below, (dtype == DType::q4_k ? 2 : 14) * of_variance * n);
    EXPECT_LT(above, 14 * of_variance * n);  // q4_k has no line that begins above 0
}

TEST_P(GroupEncoders, KeepZeroZero) {
    const std::vector<float> zeros(512);
    EXPECT_EQ(decoded(GetParam().dtype, encoded(GetParam().dtype, zeros), 512), zeros);
}

TEST_P(GroupEncoders, KeepConstantsAndSteps) {
    std::vector<float> values(256);
    for (size_t i = 0; i < values.size(); ++i) values[i] = -static_cast<float>(i % 4);
    EXPECT_LT(squared_error(GetParam().dtype, values), 0.2);
    EXPECT_LT(squared_error(GetParam().dtype, std::vector<float>(256, -2)), 1e-3);
}

TEST_P(GroupEncoders, AreDefinedForEveryFloat) {
    const DType dtype = GetParam().dtype;
    const std::vector<float> sound = normal_values(256, 1);
    const std::vector<float> expected = decoded(dtype, encoded(dtype, sound), 256);
    constexpr float kLargest = std::numeric_limits<float>::max();
    for (const float odd : {kNan, kInf, -kInf, kLargest, -kLargest, 1e-45f}) {
        std::vector<float> values(256, 0.5f);
        for (size_t i = 0; i < 256; i += 3) values[i] = odd;
        values.insert(values.end(), sound.begin(), sound.end());
        const std::vector<float> back = decoded(dtype, encoded(dtype, values), 512);
        EXPECT_EQ(std::vector(back.begin() + 256, back.end()), expected) << odd;
    }
    std::mt19937 random(5);
    std::vector<float> anything(256 * 500);
    for (float& value : anything) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    EXPECT_EQ(encoded(dtype, anything).size(), row_bytes(dtype, anything.size()));
}

TEST(Convert, IntegersAreNotFloats) {
    std::byte bytes[4]{};
    float value = 0;
    EXPECT_THROW(dequantize(DType::i32, bytes, &value, 1), UnsupportedError);
    EXPECT_THROW(quantize(DType::i32, &value, bytes, 1), UnsupportedError);
    EXPECT_FALSE(can_quantize(DType::i32));
}

}  // namespace
}  // namespace plait
