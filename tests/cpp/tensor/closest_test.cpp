#include "tensor/blocks/closest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/closest_rows.h"
#include "support/odd_values.h"
#include "tensor/convert.h"

namespace plait {
namespace {

class Closest : public testing::TestWithParam<DType> {};

std::vector<std::byte> closest(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
    test::store_row(dtype, values.data(), bytes.data(), values.size());
    return bytes;
}

std::vector<std::byte> plain(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
    quantize(dtype, values.data(), bytes.data(), values.size());
    return bytes;
}

double squared_error(DType dtype, const std::vector<float>& values,
                     const std::vector<std::byte>& bytes) {
    std::vector<float> back(values.size());
    dequantize(dtype, bytes.data(), back.data(), back.size());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i)
        sum += (values[i] - back[i]) * double{values[i] - back[i]};
    return sum;
}

TEST_P(Closest, LosesLessThanTheReferenceQuantiser) {
    std::mt19937 random(1);
    for (const float size : {1e-3f, 1.0f, 300.0f}) {
        std::normal_distribution<float> normal(0, size);
        std::vector<float> values(32 * 2000);
        for (float& value : values) value = normal(random);
        EXPECT_LT(squared_error(GetParam(), values, closest(GetParam(), values)),
                  0.92 * squared_error(GetParam(), values, plain(GetParam(), values)))
            << size;
    }
}

// The plain scale is none of the attempts, so a block may lose a little more than with it.
TEST_P(Closest, NoBlockLosesMuchMore) {
    std::mt19937 random(2);
    std::cauchy_distribution<float> heavy(0, 1);
    for (int i = 0; i < 5000; ++i) {
        std::vector<float> values(32);
        for (float& value : values) value = heavy(random);
        const double most = squared_error(GetParam(), values, plain(GetParam(), values));
        double sum = 0;
        for (const float value : values) sum += double{value} * value;
        EXPECT_LE(squared_error(GetParam(), values, closest(GetParam(), values)),
                  1.06 * most + 1e-6 * sum);
    }
}

TEST_P(Closest, ValuesWithoutAFitAreEncodedAsTheReferenceDoes) {
    std::vector<std::vector<float>> rows(9, std::vector<float>(32, 0.0f));
    rows[1].assign(32, kNan);
    rows[2].assign(32, kInf);
    rows[3].assign(32, -kInf);
    rows[4].assign(32, 1e-40f);
    rows[5].assign(32, 3e38f);
    rows[6] = rows[5];
    rows[6][3] = -3e38f;
    for (int i = 0; i < 32; ++i) rows[7][i] = rows[8][i] = static_cast<float>(i);
    rows[7][31] = kNan;
    rows[8][0] = -kInf;
    for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_EQ(closest(GetParam(), rows[i]), plain(GetParam(), rows[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Types, Closest,
                         testing::Values(DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                         DType::iq4_nl),
                         [](const auto& test) {
                             return std::string(plait::info(test.param).name);
                         });

}  // namespace
}  // namespace plait
