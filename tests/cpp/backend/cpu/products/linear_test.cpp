#include <cmath>

#include "backend/cpu/kernels/common/claim.h"
#include "backend/cpu/products/products.h"
#include "support/odd_values.h"

namespace plait::cpu::products {
namespace {

class Linear : public testing::TestWithParam<Case> {
protected:
    // Widths of whole blocks, and odd widths for types without blocks.
    std::vector<int64_t> widths() const {
        const int64_t block = info(GetParam().dtype).block_elements;
        if (block == 1) return {1, 7, 33, 96, 1056};
        if (block == 32) return {32, 96, 1056};
        return {block, 5 * block};
    }
    One weight(int64_t rows, int64_t columns) const {
        return {GetParam().isa, TensorType{GetParam().dtype, {rows, columns}}};
    }
    Input input(int64_t n, int64_t columns, uint32_t seed = 7) const {
        return {GetParam().isa, GetParam().dtype,
                random_values(static_cast<size_t>(n * columns), seed), columns};
    }
};

// Compares with sums in double precision of the dequantised weights and activations. # S2-34
TEST_P(Linear, IsTheProductOfTheDequantisedValues) {
    for (const int64_t columns : widths()) {
        for (const int64_t rows : {1, 8, 37}) {
            One one = weight(rows, columns);
            const std::vector<float> w = one.values();
            const std::vector<float> bias = random_values(static_cast<size_t>(rows), 3);
            for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 13, 37}) {
                const Input x = input(n, columns);
                const std::vector<float> y = linear(GetParam().isa, one.packed(), x, n, &bias);
                double worst = 0;
                for (int64_t i = 0; i < n * rows; ++i) {
                    double sum = bias[static_cast<size_t>(i % rows)], size = std::abs(sum);
                    for (int64_t k = 0; k < columns; ++k) {
                        const double p =
                            double{x.exact[static_cast<size_t>(i / rows * columns + k)]} *
                            w[static_cast<size_t>(i % rows * columns + k)];
                        sum += p;
                        size += std::abs(p);
                    }
                    worst = std::max(worst, std::abs(y[static_cast<size_t>(i)] - sum) / size);
                }
                // Tiles round x to 16 bits for F16 weights, and leave out the smallest products.
                const bool is_rounded = GetParam().isa->has_tiles && GetParam().dtype == DType::f16;
                EXPECT_LT(worst, is_rounded ? 8e-6 : 1e-6)
                    << columns << " columns, " << rows << " rows, " << n;
            }
        }
    }
}

// The bits of a row do not depend on the other rows of the batch, if the instruction set says so.
TEST_P(Linear, ARowAloneHasTheBitsItHasInABatch) {
    const int64_t columns = widths().back(), rows = 45, n = 37;
    One one = weight(rows, columns);
    const std::vector<float> values = random_values(static_cast<size_t>(n * columns), 5);
    const auto part = [&](int64_t begin, int64_t end) {
        const std::vector<float> x(values.begin() + begin * columns,
                                   values.begin() + end * columns);
        return linear(GetParam().isa, one.packed(),
                      Input(GetParam().isa, GetParam().dtype, x, columns), end - begin);
    };
    const std::vector<float> all = part(0, n);
    for (const int64_t step : {1, 2, 3, 5, 8, 21}) {
        std::vector<float> pieces;
        for (int64_t i = 0; i < n; i += step) {
            const std::vector<float> piece = part(i, std::min(n, i + step));
            pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        EXPECT_TRUE(same_rows(GetParam().isa, pieces, all)) << step << " rows at a time";
    }
}

// The bits do not depend on the order in which tasks run or on their threads.
TEST_P(Linear, TasksMayBeSplitAnyWay) {
    const int64_t columns = std::max<int64_t>(64, info(GetParam().dtype).block_elements);
    One one = weight(3000, columns);
    const std::vector<float> first = linear(GetParam().isa, one.packed(), input(1, columns), 1);
    for (const int64_t n : {1, 2, 150}) {
        const Input x = input(n, columns);
        const std::vector<float> whole = linear(GetParam().isa, one.packed(), x, n);
        const std::vector<float> begin(whole.begin(), whole.begin() + 3000);
        EXPECT_TRUE(same_rows(GetParam().isa, begin, first));
        for (const int64_t grain : {1, 3, -1, -7})
            EXPECT_EQ(linear(GetParam().isa, one.packed(), x, n, nullptr, grain), whole) << grain;
    }
}

// The bits do not depend on whether results are committed in pieces. A thread that lost its claim
// writes nothing.
TEST_P(Linear, ClaimedTasksGiveTheSameBitsAndLostOnesNone) {
    const int64_t columns = std::max<int64_t>(64, info(GetParam().dtype).block_elements);
    const int64_t rows = 2051;
    One one = weight(rows, columns);
    const std::vector<float> bias = random_values(static_cast<size_t>(rows), 3);
    for (const int64_t n : {int64_t{1}, int64_t{2}, int64_t{8}, int64_t{9}, kRedoRows}) {
        const std::vector<float> residual = random_values(static_cast<size_t>(n * rows), 4);
        for (const auto* added : {static_cast<const std::vector<float>*>(nullptr), &residual}) {
            const Input x = input(n, columns);
            const auto made = [&](int64_t grain, Claim* claim) {
                return linear(GetParam().isa, one.packed(), x, n, &bias, grain, claim, added);
            };
            const std::vector<float> plain = made(1 << 20, nullptr);
            for (const int64_t grain : {1 << 20, 1, 3}) {
                Claim claim;
                claim.open();
                EXPECT_EQ(made(grain, &claim), plain) << n << " rows, " << grain << " at once";
                EXPECT_TRUE(claim.close());
            }
            Claim lost;
            lose(lost);
            EXPECT_EQ(made(1 << 20, &lost), std::vector<float>(plain.size(), 12345.0f));
            EXPECT_FALSE(lost.close());
        }
    }
}

// A thread that lost its claim may read x after the run, so x must outlive it, which outputs may
// not.
TEST(LinearRedo, RequiresFewRowsAndInputsThatOutliveTheRun) {
    LinearArgs args{};
    const auto may = [&](uint8_t base, int64_t rows) {
        args.x = {64, base};
        args.fixed_rows = rows;
        return linear_redo(args, Frame{});
    };
    for (const uint8_t base : {kArena, kInputs}) {
        EXPECT_TRUE(may(base, 1) && may(base, kRedoRows));
        EXPECT_FALSE(may(base, kRedoRows + 1));
    }
    for (const uint8_t base : {kFixed, kOutput0, kOutput1}) EXPECT_FALSE(may(base, 1));
}

TEST_P(Linear, ManyTasksForManyThreads) {
    One one = weight(3000, 512);
    LinearArgs args{};
    args.weight = one.packed();
    for (const int64_t n : {1, 8, 64, 512}) {
        args.fixed_rows = n;
        EXPECT_GE(kernels(GetParam().isa).linear.tasks(&args, Frame{}), 6) << n;
    }
    args.fixed_rows = 0;
    EXPECT_EQ(kernels(GetParam().isa).linear.tasks(&args, Frame{}), 0);
}

// A value that is not finite reaches every output of its row, and no other row.
TEST_P(Linear, NotANumberReachesItsRowAlone) {
    const int64_t columns = widths().back(), rows = 20, n = 9;
    One one = weight(rows, columns);
    const std::vector<float> clean = random_values(static_cast<size_t>(n * columns), 9);
    const Input clean_input(GetParam().isa, GetParam().dtype, clean, columns);
    const std::vector<float> expected = linear(GetParam().isa, one.packed(), clean_input, n);
    for (const float bad : {kNan, kInf}) {
        std::vector<float> values = clean;
        values[static_cast<size_t>(4 * columns + columns / 2)] = bad;
        const std::vector<float> y =
            linear(GetParam().isa, one.packed(),
                   Input(GetParam().isa, GetParam().dtype, values, columns), n);
        for (int64_t i = 0; i < n * rows; ++i) {
            const float value = y[static_cast<size_t>(i)];
            if (i / rows == 4)
                EXPECT_FALSE(std::isfinite(value));
            else
                EXPECT_EQ(value, expected[static_cast<size_t>(i)]);
        }
    }
}

// Extreme codes times extreme activations: nothing saturates.
TEST_P(Linear, ExtremeCodesDoNotOverflow) {
    const DType dtype = GetParam().dtype;
    if (!is_block_type(dtype)) GTEST_SKIP() << "no integer sums";
    const int64_t columns = 256, rows = 16;
    for (const int fill : {0x00, 0xff, 0x7f, 0x80}) {
        One one = weight(rows, columns);
        std::vector<std::byte>& bytes = one.source->bytes(0);
        const size_t block = info(dtype).block_bytes;
        for (size_t at = 0; at < bytes.size(); at += block) {
            std::fill_n(bytes.begin() + static_cast<int64_t>(at), block, std::byte(fill));
            test::put_scales(dtype, &bytes[at], [] { return 0.5f; });
        }
        const std::vector<float> w = one.values();
        for (const float sign : {1.0f, -1.0f}) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < columns; ++k) {
                sum += sign * 127.0 * w[static_cast<size_t>(k)];
                size += std::abs(127.0 * w[static_cast<size_t>(k)]);
            }
            for (const int64_t n : {1, 2, 8}) {
                const Input x(GetParam().isa, dtype,
                              std::vector<float>(static_cast<size_t>(n * columns), sign * 127.0f),
                              columns);
                for (const float value : linear(GetParam().isa, one.packed(), x, n))
                    EXPECT_NEAR(value, sum, 1e-6 * size) << fill;
            }
        }
    }
}

// Types of few bits have decoders of their own for vector instructions. They agree with dequantize()
// for any bytes, also for scales that are subnormal, infinite or not a number.
TEST_P(Linear, AnyBytesAreWeights) {
    const DType dtype = GetParam().dtype;
    if (!is_expanded(dtype)) GTEST_SKIP() << "a type of more bits";
    const int64_t columns = widths().front(), rows = 2000;
    One one = weight(rows, columns);
    std::mt19937 random(11);
    for (std::byte& byte : one.source->bytes(0)) byte = static_cast<std::byte>(random());
    const std::vector<float> w = one.values();
    for (const int64_t n : {1, 3}) {
        const Input x = input(n, columns);
        const std::vector<float> y = linear(GetParam().isa, one.packed(), x, n);
        for (int64_t i = 0; i < n * rows; ++i) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < columns; ++k) {
                const double p = double{x.exact[static_cast<size_t>(i / rows * columns + k)]} *
                                 w[static_cast<size_t>(i % rows * columns + k)];
                sum += p;
                size += std::abs(p);
            }
            const double value = y[static_cast<size_t>(i)];
            if (std::isfinite(size))
                EXPECT_LE(std::abs(value - sum), 1e-6 * size) << "row " << i % rows << ", " << n;
            else
                EXPECT_FALSE(std::isfinite(value)) << "row " << i % rows << ", " << n;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, Linear, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace plait::cpu::products
