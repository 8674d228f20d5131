// slice and concat: copies of parts of vectors.
#include "backend/cpu/kernels/common/frame.h"

#include "backend/cpu/kernel_harness.h"
#include "backend/cpu/kernels/rows/rows.h"

namespace plait::cpu {
namespace {

class VectorsTest : public KernelTest {};

TEST_P(VectorsTest, SliceCopiesItsElementsAndNoOthers) {
    const int64_t rows = 7, per_row = 3;
    for (const int64_t width : {1, 5, 64, 100, 5000}) {
        const Floats x = random_floats(rows * per_row * width, random);
        for (const int64_t begin : {int64_t{0}, width / 3, width - 1}) {
            for (const int64_t n : {int64_t{1}, (width - begin + 1) / 2, width - begin}) {
                Floats y(rows * per_row * n + 1);
                y[rows * per_row * n] = 42.0f;
                SliceArgs args{ref_to(x), ref_to(y), width, begin, {Extent::tokens, 0, per_row, n}};
                run_kernel(kernels().slice, args, tokens(rows), 0, Cut::random);
                for (int64_t i = 0; i < rows * per_row * n; ++i)
                    ASSERT_EQ(y[i], x[i / n * width + begin + i % n]) << i;
                EXPECT_EQ(y[rows * per_row * n], 42.0f);
            }
        }
    }
}

TEST_P(VectorsTest, ConcatJoinsVectorsAndSharesOneOfB) {
    const int64_t rows = 7, per_row = 4;
    for (const auto& [a_width, b_width] :
         {std::pair<int64_t, int64_t>{1, 1}, {128, 64}, {3, 5000}}) {
        for (const bool shared : {false, true}) {
            const int64_t width = a_width + b_width, n = rows * per_row * width;
            const Floats a = random_floats(rows * per_row * a_width, random);
            const Floats b = random_floats(rows * (shared ? 1 : per_row) * b_width, random);
            Floats y(n + 1);
            y[n] = 42.0f;
            ConcatArgs args{ref_to(a), ref_to(b), ref_to(y),
                            shared,    a_width,   {Extent::tokens, 0, per_row, width}};
            run_kernel(kernels().concat, args, tokens(rows), 0, Cut::random);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t v = i / width, k = i % width;
                ASSERT_EQ(y[i], k < a_width
                                    ? a[v * a_width + k]
                                    : b[(shared ? v / per_row : v) * b_width + k - a_width]);
            }
            EXPECT_EQ(y[n], 42.0f);
        }
    }
}

PLAIT_ON_EVERY_ISA(VectorsTest);

}  // namespace
}  // namespace plait::cpu
