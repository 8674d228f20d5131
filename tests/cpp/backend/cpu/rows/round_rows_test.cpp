#include <cmath>
#include <cstring>

#include "backend/cpu/products/products.h"
#include "support/odd_values.h"

namespace plait::cpu::products {
namespace {

class RoundRows : public testing::TestWithParam<Isa> {};

// Every row and part has its place, and what a row lacks of the last 32 columns are zeros.
TEST_P(RoundRows, WritesTheRoundedRowAndWhatRoundingLeft) {
    for (const int64_t columns : {1, 31, 32, 33, 100, 4097}) {
        for (const int64_t rows : {1, 15, 16, 17, 40}) {
            std::vector<float> x = random_values(static_cast<size_t>(rows * columns), 3);
            x.front() = 1 + 0x1p-9f;  // as close to the number above as to that below
            x.back() = 0;
            for (const int parts : {1, 2}) {
                std::vector<int32_t> words = rounded(GetParam(), x, columns, parts);
                auto* all = reinterpret_cast<unsigned char*>(words.data());
                for (int64_t r = 0; r < rows; ++r) {
                    const RoundedRow row = rounded_row(all, rows, columns, parts, r);
                    for (int64_t k = 0; k < (columns + 31) / 32 * 32; ++k) {
                        float left = k < columns ? x[static_cast<size_t>(r * columns + k)] : 0.0f;
                        for (int part = 0; part < parts; ++part) {
                            const uint16_t expected = f32_to_bf16(left);
                            ASSERT_EQ(row.at(part, k / 32)[k % 32], expected)
                                << rows << " x " << columns << ": row " << r << ", column " << k
                                << ", part " << part;
                            left -= bf16_to_f32(expected);
                        }
                    }
                }
            }
        }
    }
}

// With two parts, the first is not infinite, also where rounding would make it so.
TEST_P(RoundRows, KeepsValuesThatAreNotFinite) {
    const float largest = 0x1.ffp127f;  // BF16 has no closer number than infinity
    const std::vector<float> x = {kInf, -kInf, kNan, largest};
    for (const int parts : {1, 2}) {
        const std::vector<int32_t> words = rounded(GetParam(), x, 4, parts);
        const std::vector<float> y = sums_of_parts(words, 4, parts);
        EXPECT_EQ(y[0], kInf);
        EXPECT_EQ(y[1], -kInf);
        EXPECT_TRUE(std::isnan(y[2]));
        if (parts == 2)
            EXPECT_EQ(y[3], largest);
        else
            EXPECT_EQ(y[3], kInf);
        const auto* first = reinterpret_cast<const uint16_t*>(words.data());
        for (const int k : {0, 1, 3}) EXPECT_EQ(std::isinf(bf16_to_f32(first[k])), parts == 1) << k;
    }
}

INSTANTIATE_TEST_SUITE_P(All, RoundRows, testing::ValuesIn(available_isas()),
                         [](const testing::TestParamInfo<Isa>& isa) {
                             return std::string(to_string(isa.param));
                         });

}  // namespace
}  // namespace plait::cpu::products
