#include "tensor/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/fit.h"
#include "support/odd_values.h"
#include "tensor/convert.h"

namespace plait {
namespace {

using test::Fit;
using test::name_of;
using test::normal_values;

constexpr uint64_t kRow = 512;

std::vector<std::byte> searched(DType dtype, const std::vector<float>& values,
                                const float* weights) {
    std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
    quantize_search(dtype, values.data(), weights, kRow, values.size() / kRow, bytes.data());
    return bytes;
}

double weighted_error(DType dtype, const std::vector<float>& values,
                      const std::vector<std::byte>& bytes, const std::vector<float>& weights) {
    std::vector<float> back(values.size());
    dequantize(dtype, bytes.data(), back.data(), values.size());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double rest = double{back[i]} - values[i];
        sum += weights[i % kRow] * rest * rest;
    }
    return sum;
}

std::vector<float> uneven_weights() {
    std::mt19937 random(4);
    std::lognormal_distribution<float> lognormal(0, 1.5f);
    std::vector<float> weights(kRow);
    for (float& weight : weights) weight = lognormal(random);
    return weights;
}

class Search : public testing::TestWithParam<Fit> {};

INSTANTIATE_TEST_SUITE_P(
    EveryType, Search,
    testing::Values(Fit{DType::q8_0, 5e-5}, Fit{DType::q4_0, 0.0085}, Fit{DType::q4_1, 0.0065},
                    Fit{DType::q5_0, 0.0022}, Fit{DType::q5_1, 0.0016}, Fit{DType::q2_k, 0.08},
                    Fit{DType::q3_k, 0.032}, Fit{DType::q4_k, 0.0065}, Fit{DType::q5_k, 0.0016},
                    Fit{DType::q6_k, 0.00036}, Fit{DType::iq4_nl, 0.0075},
                    Fit{DType::iq4_xs, 0.0075}, Fit{DType::mxfp4, 0.014}, Fit{DType::tq1_0, 0.2},
                    Fit{DType::tq2_0, 0.14}, Fit{DType::nvfp4, 0.0125}, Fit{DType::q1_0, 0.37},
                    Fit{DType::q2_0, 0.14}, Fit{DType::iq1_s, 0.21}, Fit{DType::iq1_m, 0.18},
                    Fit{DType::iq2_xxs, 0.112}, Fit{DType::iq2_xs, 0.085}, Fit{DType::iq2_s, 0.06},
                    Fit{DType::iq3_xxs, 0.033}, Fit{DType::iq3_s, 0.018}),
    name_of<Fit>);

TEST_P(Search, LeavesLittleError) {
    const auto [dtype, of_variance] = GetParam();
    const std::vector<float> ones(kRow, 1.0f);
    for (const float deviation : {1e-2f, 1.0f, 100.0f}) {
        const std::vector<float> values = normal_values(kRow * 50, deviation);
        const double error = weighted_error(dtype, values, searched(dtype, values, nullptr), ones);
        EXPECT_LT(error, of_variance * deviation * deviation * static_cast<double>(values.size()));
        EXPECT_GT(error,
                  0.3 * of_variance * deviation * deviation * static_cast<double>(values.size()));
    }
}

TEST_P(Search, FollowsTheWeights) {
    const DType dtype = GetParam().dtype;
    const std::vector<float> values = normal_values(kRow * 20, 1), weights = uneven_weights();
    const double even = weighted_error(dtype, values, searched(dtype, values, nullptr), weights);
    const double weighted =
        weighted_error(dtype, values, searched(dtype, values, weights.data()), weights);
    EXPECT_LT(weighted, even);
}

TEST_P(Search, KeepsZeroZero) {
    const std::vector<float> zeros(kRow), ones(kRow, 1.0f);
    const auto bytes = searched(GetParam().dtype, zeros, nullptr);
    EXPECT_EQ(weighted_error(GetParam().dtype, zeros, bytes, ones), 0);
}

TEST_P(Search, IsDefinedForEveryFloat) {
    const DType dtype = GetParam().dtype;
    const std::vector<float> sound = normal_values(kRow, 1);
    const std::vector<std::byte> expected = searched(dtype, sound, nullptr);
    constexpr float kLargest = std::numeric_limits<float>::max();
    for (const float odd : {kNan, kInf, -kInf, kLargest, -kLargest, 1e-45f, 1e-30f}) {
        std::vector<float> values(kRow, 0.5f);
        for (size_t i = 0; i < kRow; i += 3) values[i] = odd;
        values.insert(values.end(), sound.begin(), sound.end());
        const std::vector<std::byte> bytes = searched(dtype, values, nullptr);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               bytes.begin() + static_cast<std::ptrdiff_t>(expected.size())))
            << odd;
    }
    std::mt19937 random(5);
    std::vector<float> anything(kRow * 100);
    for (float& value : anything) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    EXPECT_EQ(searched(dtype, anything, nullptr).size(), row_bytes(dtype, anything.size()));
}

TEST(SearchTypes, OthersAreRefused) {
    const std::vector<float> values(256);
    std::vector<std::byte> bytes(1024);
    for (const DTypeInfo& type : all_dtypes()) {
        if (can_search(type.dtype)) continue;
        EXPECT_THROW(quantize_search(type.dtype, values.data(), nullptr, 256, 1, bytes.data()),
                     UnsupportedError);
    }
    EXPECT_THROW(quantize_search(DType::q4_k, values.data(), nullptr, 128, 2, bytes.data()),
                 InvalidArgument);
}

}  // namespace
}  // namespace plait
