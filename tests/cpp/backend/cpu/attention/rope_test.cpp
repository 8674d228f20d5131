// rope_table, rope, hadamard, rotate_rows and temperature.
#include "backend/cpu/kernels/attention/rope.h"

#include <bit>

#include "backend/cpu/kernel_harness.h"
#include "backend/cpu/kernels/attention/cache_rows.h"
#include "support/odd_values.h"
#include "tensor/blocks/hadamard.h"
#include "tensor/convert.h"

namespace plait::cpu {
namespace {

class RopeTest : public KernelTest {
protected:
    Floats table(const std::vector<int32_t>& positions, RopeTableArgs args, int64_t n,
                 const Floats* factors = nullptr) {
        Floats y(n * args.frequencies.n_rot);
        args.positions = ref_to(positions);
        args.axes = static_cast<int64_t>(positions.size()) / n;
        args.y = ref_to(y);
        args.extent = Extent::tokens;
        args.has_factors = factors != nullptr;
        if (factors) args.factors = ref_to(*factors);
        run_kernel(kernels().rope_table, args, tokens(n), 0, Cut::random);
        return y;
    }
    Floats rotate(const Floats& x, const Floats& table, int64_t n, int64_t heads, int64_t width,
                  int64_t n_rot, bool interleaved, bool in_place = false) {
        Floats y = in_place ? x : Floats(x.size());
        RopeArgs args{};
        args.x = in_place ? ref_to(y) : ref_to(x);
        args.table = ref_to(table);
        args.y = ref_to(y);
        args.extent = Extent::tokens;
        args.interleaved = interleaved;
        args.heads = heads;
        args.width = width;
        args.n_rot = n_rot;
        run_kernel(kernels().rope, args, tokens(n), n_rot * sizeof(float), Cut::random);
        return y;
    }
};

RopeTableArgs plain(int64_t n_rot, double base = 10000.0) {
    RopeTableArgs args{};
    args.magnitude = 1.0;
    args.frequencies = {base, 1.0, 0.0, 0.0, 0.0, n_rot};
    return args;
}

TEST_P(RopeTest, TableHoldsCosineAndSineOfPositionTimesFrequency) {
    const std::vector<int32_t> positions = {0, 1, 2, 17, 4095, 131071, 1000000};
    const int64_t n = positions.size();
    Floats factors(32);
    for (int i = 0; i < 32; ++i) factors[i] = 1.0f + 0.25f * static_cast<float>(i);
    for (const Floats* divide : {static_cast<const Floats*>(nullptr), &std::as_const(factors)}) {
        RopeTableArgs args = plain(64, 500000.0);
        args.frequencies.scale = 0.25;
        args.magnitude = 1.5;
        const Floats y = table(positions, args, n, divide);
        for (int64_t t = 0; t < n; ++t) {
            for (int i = 0; i < 32; ++i) {
                const double angle = positions[t] * 0.25 * std::pow(500000.0, -2.0 * i / 64) /
                                     (divide ? (*divide)[i] : 1.0f);
                ASSERT_TRUE(near(y[(t * 32 + i) * 2], 1.5 * std::cos(angle), 2e-7));
                ASSERT_TRUE(near(y[(t * 32 + i) * 2 + 1], 1.5 * std::sin(angle), 2e-7));
            }
        }
    }
}

// Low pairs have high frequencies and keep them, high pairs are interpolated, with a ramp in
// between.
TEST_P(RopeTest, YarnRampsFromExtrapolationToInterpolation) {
    RopeTableArgs args = plain(64);
    args.frequencies = {10000.0, 0.25, 1.0, 10.0, 20.0, 64};
    const Floats y = table({1000}, args, 1);
    for (int i = 0; i < 32; ++i) {
        const double kept = i <= 10 ? 1.0 : i >= 20 ? 0.0 : (20.0 - i) / 10;
        const double angle = 1000 * std::pow(10000.0, -2.0 * i / 64) * (0.25 * (1 - kept) + kept);
        EXPECT_TRUE(near(y[2 * i], std::cos(angle), 2e-7)) << i;
        EXPECT_TRUE(near(y[2 * i + 1], std::sin(angle), 2e-7)) << i;
    }
}

TEST_P(RopeTest, SectionsChooseTheAxis) {  // # S4-25
    RopeTableArgs args = plain(32);
    const int32_t sections[4] = {2, 3, 1, 2};
    std::copy_n(sections, 4, args.sections);
    const std::vector<int32_t> positions = {5, 70, 900, 11000};
    const Floats y = table(positions, args, 1);
    const int axis[16] = {0, 0, 1, 1, 1, 2, 3, 3, 0, 0, 1, 1, 1, 2, 3, 3};
    for (int i = 0; i < 16; ++i) {
        const double angle = positions[axis[i]] * std::pow(10000.0, -2.0 * i / 32);
        EXPECT_TRUE(near(y[2 * i], std::cos(angle), 2e-7)) << i;
    }
}

// A pair whose axis has its pairs already takes the fourth axis.
TEST_P(RopeTest, PairsTakeTheAxesInTurn) {
    const std::vector<int32_t> positions = {5, 70, 900, 11000};
    const auto axes = [&](std::vector<int32_t> sections, int64_t n_rot) {
        RopeTableArgs args = plain(n_rot);
        std::copy_n(sections.begin(), 4, args.sections);
        args.in_turn = 1;
        const Floats y = table(positions, args, 1);
        std::vector<int> found;
        for (int i = 0; i < n_rot / 2; ++i)
            for (int axis = 0; axis < 4; ++axis) {
                const double each = std::pow(10000.0, -2.0 * i / static_cast<double>(n_rot));
                if (near(y[2 * i], std::cos(positions[axis] * each), 2e-7)) found.push_back(axis);
            }
        return found;
    };
    EXPECT_EQ(axes({4, 2, 2, 0}, 16), (std::vector{0, 1, 2, 0, 1, 2, 0, 3}));
    EXPECT_EQ(axes({3, 3, 2, 0}, 16), (std::vector{0, 1, 2, 0, 1, 2, 0, 1}));
    EXPECT_EQ(axes({1, 1, 1, 0}, 12), (std::vector{0, 1, 2, 0, 1, 2}));  // they repeat
}

TEST_P(RopeTest, TemperatureStepsWithThePosition) {
    const std::vector<int32_t> positions = {0, 6, 7, 8, 15, 16, 8191, 1 << 30};
    const auto n = static_cast<int64_t>(positions.size());
    for (const int32_t offset : {0, 1}) {
        Floats y(n);
        TemperatureArgs args{};
        args.positions = ref_to(positions);
        args.y = ref_to(y);
        args.extent = Extent::tokens;
        args.offset = offset;
        args.length = 8;
        args.scale = 0.3f;
        run_kernel(kernels().temperature, args, tokens(n), 0, Cut::single);
        for (int64_t t = 0; t < n; ++t) {
            const double steps = std::floor((double(positions[t]) + offset) / 8);
            EXPECT_TRUE(near(y[t], 1 + 0.3 * std::log(1 + steps), 1e-6)) << positions[t];
        }
    }
}

TEST_P(RopeTest, APositionHasTheSameBitsInAnyBatch) {
    std::vector<int32_t> positions(100);
    for (int32_t i = 0; i < 100; ++i) positions[i] = i * 37;
    const Floats together = table(positions, plain(64), 100);
    const Floats alone = table({61 * 37}, plain(64), 1);
    EXPECT_EQ(0, std::memcmp(together.data() + 61 * 64, alone.data(), 64 * sizeof(float)));
}

TEST_P(RopeTest, RotatesPairsOrHalvesAndCopiesTheRest) {
    for (const int64_t n_rot : {2, 6, 32, 34, 64, 80}) {
        for (const int64_t width : {n_rot, n_rot + 7}) {
            const int64_t n = 3, heads = 2;
            const Floats x = random_floats(n * heads * width, random);
            const Floats angles = table({3, 4, 900}, plain(n_rot), n);
            for (const bool interleaved : {false, true}) {
                const Floats y = rotate(x, angles, n, heads, width, n_rot, interleaved);
                for (int64_t r = 0; r < n * heads; ++r) {
                    const float* from = x.data() + r * width;
                    const float* to = y.data() + r * width;
                    for (int64_t i = 0; i < n_rot / 2; ++i) {
                        const int64_t p = interleaved ? 2 * i : i;
                        const int64_t q = interleaved ? 2 * i + 1 : i + n_rot / 2;
                        const double c = angles[(r / heads) * n_rot + 2 * i];
                        const double s = angles[(r / heads) * n_rot + 2 * i + 1];
                        ASSERT_TRUE(near(to[p], from[p] * c - from[q] * s, 1e-6));
                        ASSERT_TRUE(near(to[q], from[p] * s + from[q] * c, 1e-6));
                    }
                    for (int64_t i = n_rot; i < width; ++i) ASSERT_EQ(to[i], from[i]);
                }
                EXPECT_TRUE(
                    same_bits(y, rotate(x, angles, n, heads, width, n_rot, interleaved, true)));
            }
        }
    }
}

// Rotating a key of position p by d gives the key of position p + d.
TEST_P(RopeTest, StoredKeysMoveByADelta) {
    const int64_t heads = 3, head = 128, n_rot = 48, rows = 5;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0}) {
        for (const auto& [interleaved, begin] :
             {std::pair{false, 0}, std::pair{true, 0}, std::pair{true, 40}, std::pair{false, 64}}) {
            const Floats x = random_floats(heads * head, random);
            const Floats at = table({100, 100 - 40}, plain(n_rot), 2);
            const auto place = [&](int64_t which) {
                Floats angles(n_rot);
                std::copy_n(at.data() + which * n_rot, n_rot, angles.data());
                Floats y = x;
                for (int64_t h = 0; h < heads; ++h) {
                    Floats tail(head - begin);
                    std::copy_n(x.data() + h * head + begin, head - begin, tail.data());
                    const Floats turned =
                        rotate(tail, angles, 1, 1, head - begin, n_rot, interleaved);
                    std::copy_n(turned.data(), head - begin, y.data() + h * head + begin);
                }
                return y;
            };
            const Floats before = place(0), after = place(1);

            const size_t bytes = row_bytes(dtype, heads * head);
            std::vector<std::byte> storage(rows * bytes, std::byte{1});
            quantize(dtype, before.data(), storage.data() + 2 * bytes, heads * head);
            const std::vector<std::byte> untouched = storage;
            const std::vector<int32_t> which = {2, 4}, deltas = {-40, 0};
            RotateRowsArgs args{};
            args.storage = ref_to(storage);
            args.rows = ref_to(which);
            args.deltas = ref_to(deltas);
            args.dtype = dtype;
            args.interleaved = interleaved;
            args.extent = Extent::moves;
            args.heads = heads;
            args.begin = begin;
            args.head_bytes = bytes / heads;
            args.row_bytes = bytes;
            args.frequencies = plain(n_rot).frequencies;
            run_kernel(kernels().rotate_rows, args, moves(2), rotate_rows_scratch(args),
                       Cut::single);

            Floats moved(heads * head);
            dequantize(dtype, storage.data() + 2 * bytes, moved.data(), heads * head);
            const double tolerance = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 5e-2;
            for (int64_t i = 0; i < heads * head; ++i)
                ASSERT_TRUE(near(moved[i], after[i], tolerance)) << i;
            for (const int64_t row : {0, 1, 3, 4})
                EXPECT_EQ(0, std::memcmp(&storage[row * bytes], &untouched[row * bytes], bytes));
        }
    }
}

// The reference is tensor/blocks/hadamard.h, which is compared with the matrix itself below. Equal bits
// show that a sequence has the same keys on every instruction set.
TEST_P(RopeTest, HadamardHasTheBitsOfThePlainTransform) {
    for (int64_t block = kMinHadamard; block <= kMaxHadamard; block *= 2) {
        const int64_t n = 5, width = 3 * block;
        Floats x = random_floats(n * width, random);
        x[width + 1] = kInf;
        x[2 * width + block] = kNan;
        Floats want = x;
        hadamard(want.data(), n * width, block);
        for (const bool in_place : {false, true}) {
            Floats y = in_place ? x : Floats(x.size());
            HadamardArgs args{};
            args.x = in_place ? ref_to(y) : ref_to(x);
            args.y = ref_to(y);
            args.extent = Extent::tokens;
            args.width = width;
            args.block = block;
            run_kernel(kernels().hadamard, args, tokens(n), 0, Cut::random);
            for (int64_t i = 0; i < n * width; ++i)
                ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(y[i]) : y[i] == want[i])
                    << block << ", " << i;
        }
    }
}

TEST(Hadamard, IsTheOrthonormalMatrixOfSigns) {
    for (uint32_t block = kMinHadamard; block <= kMaxHadamard; block *= 2) {
        std::mt19937 random(block);
        const Floats x = random_floats(2 * block, random);
        Floats y = x;
        hadamard(y.data(), 2 * block, block);
        for (uint32_t i = 0; i < 2 * block; ++i) {
            double sum = 0;
            for (uint32_t j = 0; j < block; ++j)
                sum += (std::popcount(i % block & j) % 2 ? -1.0 : 1.0) * x[i / block * block + j];
            ASSERT_TRUE(near(y[i], sum / std::sqrt(block), 1e-5)) << block << ", " << i;
        }
        hadamard(y.data(), 2 * block, block);  // its own inverse
        for (uint32_t i = 0; i < 2 * block; ++i) ASSERT_TRUE(near(y[i], x[i], 1e-5)) << i;
    }
}

// A storage of transformed keys, where the rotated elements are a part of each head.
TEST_P(RopeTest, TransformedKeysMoveByADelta) {
    const int64_t heads = 2, head = 96, padded = 96, block = 32, n_rot = 24, begin = 40;
    for (const DType dtype : {DType::q8_0, DType::q5_1}) {
        const Floats x = random_floats(heads * head, random);
        Floats stored = x, want = x;
        hadamard(stored.data(), heads * head, block);
        const Floats angles = table({-7}, plain(n_rot), 1);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < n_rot / 2; ++i) {
                const int64_t a = h * head + begin + i, b = a + n_rot / 2;
                const float c = angles[2 * i], s = angles[2 * i + 1];
                want[a] = x[a] * c - x[b] * s;
                want[b] = x[a] * s + x[b] * c;
            }
        const size_t bytes = row_bytes(dtype, heads * padded);
        std::vector<std::byte> storage(2 * bytes, std::byte{1});
        quantize(dtype, stored.data(), storage.data() + bytes, heads * padded);
        const std::vector<int32_t> which = {1}, deltas = {-7};
        RotateRowsArgs args{};
        args.storage = ref_to(storage);
        args.rows = ref_to(which);
        args.deltas = ref_to(deltas);
        args.dtype = dtype;
        args.extent = Extent::moves;
        args.heads = heads;
        args.begin = begin;
        args.head_bytes = bytes / heads;
        args.row_bytes = bytes;
        args.frequencies = plain(n_rot).frequencies;
        args.head_dim = head;
        args.hadamard = block;
        run_kernel(kernels().rotate_rows, args, moves(1), rotate_rows_scratch(args), Cut::single);
        Floats moved(heads * head);
        dequantize(dtype, storage.data() + bytes, moved.data(), heads * head);
        hadamard(moved.data(), heads * head, block);
        const double tolerance = dtype == DType::q8_0 ? 5e-2 : 3e-1;
        for (int64_t i = 0; i < heads * head; ++i)
            ASSERT_TRUE(near(moved[i], want[i], tolerance)) << i;
        for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(storage[i], std::byte{1});
    }
}

PLAIT_ON_EVERY_ISA(RopeTest);

}  // namespace
}  // namespace plait::cpu
