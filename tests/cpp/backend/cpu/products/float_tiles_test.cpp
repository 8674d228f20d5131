// Products with F16 and BF16 weights on AMX beside their definition in amx/float_product.cpp.
#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu/products/products.h"

namespace plait::cpu::products {
namespace {

// A float as the sum of BF16 numbers: x rounded, then what rounding left.
std::vector<float> rounded(float x, int parts) {
    std::vector<float> all;
    for (int part = 0; part < parts; ++part) {
        all.push_back(bf16_to_f32(f32_to_bf16(x)));
        x -= all.back();
    }
    return all;
}
// The upper bits of an F16 weight, rounded, and the rest. A BF16 weight is its upper bits.
std::vector<float> split(float w, int parts) {
    uint32_t bits;
    std::memcpy(&bits, &w, sizeof bits);
    bits = (bits + 0x8000) & 0xffff0000;
    float high;
    std::memcpy(&high, &bits, sizeof high);
    return parts == 1 ? std::vector{high} : std::vector{high, w - high};
}

struct Factors {
    std::vector<std::vector<float>> x, w;  // [columns][parts]
};

// The definition, written column by column.
float defined(const Factors& f, int64_t columns, int parts) {
    struct PartsOf {
        size_t x, w;
    };
    std::vector<PartsOf> products = {{0, 0}};
    if (parts == 2) products = {{0, 0}, {1, 0}, {0, 1}};
    float y = 0;
    for (int64_t begin = 0; begin < columns; begin += 32) {
        for (const PartsOf& of : products) {
            float sums[2] = {0, 0};
            for (int64_t k = begin; k < std::min(columns, begin + 32); ++k) {
                float& sum = sums[(k - begin) % 2];
                const auto at = static_cast<size_t>(k);
                sum = std::fma(f.x[at][of.x], f.w[at][of.w], sum);
            }
            y += sums[0] + sums[1];
        }
    }
    return y;
}

class FloatTiles : public testing::TestWithParam<DType> {
protected:
    void SetUp() override {
        if (!available_isas().back()->has_tiles) GTEST_SKIP() << "a machine without AMX";
    }
    int parts() const { return GetParam() == DType::f16 ? 2 : 1; }
    Isa isa_ = available_isas().back();
};

// Vector registers, tiles of few rows, tiles of many, rows and columns that fill no tile, and more
// columns and rows than the scratch holds at once.
TEST_P(FloatTiles, HaveTheBitsOfTheirDefinition) {
    struct Size {
        int64_t rows, columns;
        std::vector<int64_t> counts;
    };
    for (const Size& size : {Size{37, 1, {1, 40}}, Size{100, 33, {1, 2, 3, 8, 9, 16, 17, 31, 33}},
                             Size{37, 1056, {1, 5, 13, 64, 65}}, Size{16, 288, {515, 1030}},
                             Size{17, 20001, {1, 2, 9, 20}}}) {
        One one(isa_, TensorType{GetParam(), {size.rows, size.columns}});
        const std::vector<float> w = one.values();
        for (const int64_t n : size.counts) {
            const std::vector<float> values =
                random_values(static_cast<size_t>(n * size.columns), 7);
            const Input x(isa_, GetParam(), values, size.columns);
            const std::vector<float> y = linear(isa_, one.packed(), x, n);
            for (const int64_t row : {int64_t{0}, n / 2, n - 1}) {
                for (int64_t out = 0; out<size.rows; out += size.rows> 20 ? 7 : 1) {
                    Factors f;
                    for (int64_t k = 0; k < size.columns; ++k) {
                        f.x.push_back(
                            rounded(values[static_cast<size_t>(row * size.columns + k)], parts()));
                        f.w.push_back(
                            split(w[static_cast<size_t>(out * size.columns + k)], parts()));
                    }
                    ASSERT_EQ(y[static_cast<size_t>(row * size.rows + out)],
                              defined(f, size.columns, parts()))
                        << size.columns << " columns, " << n << " rows: row " << row << ", output "
                        << out;
                }
            }
        }
    }
}

#if defined(__x86_64__) && !defined(PLAIT_EMULATED_TILES)
// Another library in this thread finds the tiles as it configured them, or released.
TEST_P(FloatTiles, RestoreTheConfigurationOfTiles) {
    using Shapes = std::array<uint8_t, 64>;
    const auto stored = [] {
        Shapes shapes;
        asm volatile("sttilecfg %0" : "=m"(shapes));
        return shapes;
    };
    Shapes others{1};     // palette 1
    others[16] = 32;      // bytes of a row of the first tile
    others[16 + 32] = 5;  // and its rows
    for (const DType dtype : {GetParam(), DType::q4_0}) {
        One one(isa_, TensorType{dtype, {40, 96}});
        const Input x(isa_, dtype, random_values(40 * 96, 7), 96);
        for (const Shapes& before : {Shapes{}, others}) {
            asm volatile("ldtilecfg %0" ::"m"(before));
            linear(isa_, one.packed(), x, 40);
            EXPECT_EQ(stored(), before);
        }
    }
    asm volatile("tilerelease");
}
#endif

INSTANTIATE_TEST_SUITE_P(All, FloatTiles, testing::Values(DType::bf16, DType::f16),
                         [](const testing::TestParamInfo<DType>& type) {
                             return std::string(plait::info(type.param).name);
                         });

}  // namespace
}  // namespace plait::cpu::products
