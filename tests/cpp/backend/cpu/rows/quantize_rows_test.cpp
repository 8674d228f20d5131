#include <cmath>

#include "backend/cpu/products/products.h"
#include "support/odd_values.h"

namespace plait::cpu::products {
namespace {

struct Block {
    const int8_t* codes;
    float scale;
    int16_t sums[2];
};

Block block_of(const std::vector<int32_t>& words, int64_t columns, int64_t row, int64_t block) {
    const QuantizedRow all = row_of(words, columns, row);
    const int16_t* sums = all.block_sums(block);
    return {all.block_codes(block), *all.block_scale(block), {sums[0], sums[1]}};
}

TEST(QuantizeRows, RoundsToTheNearestOf255Levels) {
    const int64_t columns = 96, n = 50;
    const std::vector<float> x = random_values(static_cast<size_t>(n * columns), 1);
    for (const Isa isa : available_isas()) {
        const std::vector<int32_t> words = quantized(isa, x, columns);
        for (int64_t i = 0; i < n * columns / 32; ++i) {
            const Block b = block_of(words, columns, i / 3, i % 3);
            const float* v = x.data() + 32 * i;
            float most = 0;
            for (int k = 0; k < 32; ++k) most = std::max(most, std::abs(v[k]));
            EXPECT_EQ(b.scale, most / 127.0f);
            for (int k = 0; k < 32; ++k)
                EXPECT_EQ(b.codes[k], static_cast<int>(std::nearbyint(v[k] * (127.0f / most))));
            for (int half = 0; half < 2; ++half) {
                int sum = 0;
                for (int k = 0; k < 16; ++k) sum += b.codes[16 * half + k];
                EXPECT_EQ(b.sums[half], sum);
            }
        }
    }
}

TEST(QuantizeRows, EveryInstructionSetGivesTheSameBits) {
    std::vector<float> x = random_values(64 * 320, 2);
    x[5] = kNan;
    std::vector<std::vector<int32_t>> all;
    for (const Isa isa : available_isas()) all.push_back(quantized(isa, x, 320));
    for (std::vector<int32_t>& words : all) {
        EXPECT_TRUE(std::isnan(restored(words, 320)[0]));
        *row_of(words, 320, 0).block_scale(0) = 0.0f;  // a NaN's bits may differ
        EXPECT_EQ(words, all[0]);
    }
}

TEST(QuantizeRows, ZerosAndTinyValuesGiveZero) {
    for (const Isa isa : available_isas()) {
        for (const float value : {0.0f, -0.0f, 1e-45f, 1e-38f, -1e-31f}) {
            const std::vector<float> x(32, value);
            for (const float y : restored(quantized(isa, x, 32), 32)) EXPECT_EQ(y, 0.0f);
        }
        const std::vector<float> large(32, 3e38f);
        for (const float y : restored(quantized(isa, large, 32), 32))
            EXPECT_NEAR(y / 3e38f, 1.0f, 1e-6f);
    }
}

TEST(QuantizeRows, ANonFiniteValueMakesItsBlockNaN) {
    for (const Isa isa : available_isas()) {
        for (const float bad : {kNan, kInf, -kInf}) {
            for (const size_t at : {size_t{32}, size_t{47}, size_t{63}}) {
                std::vector<float> x = random_values(96, 4);
                x[at] = bad;
                const std::vector<float> y = restored(quantized(isa, x, 96), 96);
                for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
            }
        }
    }
}

TEST(QuantizeRows, HeadsOfAnItemAreRows) {
    const std::vector<float> x = random_values(3 * 4 * 64, 6);
    for (const Isa isa : available_isas()) {
        std::vector<int32_t> words(x.size() / 32 * 10);
        QuantizeRowsArgs args{};
        args.x = fixed(x.data());
        args.y = fixed(words.data());
        args.fixed_rows = 3;
        args.rows_per_item = 4;
        args.columns = 64;
        run(kernels(isa).quantize_rows, args, 1);
        EXPECT_EQ(words, quantized(isa, x, 64));
    }
}

}  // namespace
}  // namespace plait::cpu::products
