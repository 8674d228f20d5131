#include "backend/cpu/kernels/rms_norm.h"

#include "backend/kernel_harness.h"

namespace plait::cpu {
namespace {

class RmsNormTest : public KernelTest {
protected:
    Floats norm(const Floats& x, const Floats* weight, int64_t items, int64_t rows_per_item,
                int64_t width, Cut cut = Cut::whole) {
        Floats y(x.size());
        RmsNormArgs args{};
        args.x = ref_to(x);
        args.y = ref_to(y);
        args.has_weight = weight != nullptr;
        if (weight) args.weight = ref_to(*weight);
        args.extent = 1;
        args.rows_per_item = rows_per_item;
        args.width = width;
        args.epsilon = 1e-5f;
        run_kernel(kernels().rms_norm, args, tokens(items), 0, cut);
        return y;
    }
};

TEST_P(RmsNormTest, MatchesTheFormula) {
    for (int64_t width = 1; width <= 67; ++width) {
        const Floats x = random_floats(3 * 2 * width, random), w = random_floats(width, random);
        for (const Floats* weight : {&w, static_cast<const Floats*>(nullptr)}) {
            const Floats y = norm(x, weight, 3, 2, width);
            for (int64_t r = 0; r < 6; ++r) {
                double square = 0;
                for (int64_t i = 0; i < width; ++i)
                    square += double(x[r * width + i]) * x[r * width + i];
                const double scale = 1 / std::sqrt(square / width + 1e-5);
                for (int64_t i = 0; i < width; ++i) {
                    const double expected = x[r * width + i] * scale * (weight ? w[i] : 1.0f);
                    ASSERT_TRUE(near(y[r * width + i], expected, 1e-6 * (1 + std::abs(expected))));
                }
            }
        }
    }
}

TEST_P(RmsNormTest, ARowHasTheSameBitsInAnyCompany) {
    for (const int64_t width : {64, 576, 5000}) {
        const Floats x = random_floats(130 * width, random), w = random_floats(width, random);
        const Floats y = norm(x, &w, 130, 1, width);
        EXPECT_TRUE(same_bits(y, norm(x, &w, 130, 1, width, Cut::random)));
        Floats row(width);
        std::copy_n(x.data() + 77 * width, width, row.data());
        const Floats alone = norm(row, &w, 1, 1, width);
        EXPECT_EQ(0, std::memcmp(alone.data(), y.data() + 77 * width, width * sizeof(float)));
    }
}

TEST_P(RmsNormTest, NanStaysInItsRow) {
    Floats x = random_floats(3 * 40, random);
    x[45] = kNan;
    const Floats y = norm(x, nullptr, 3, 1, 40);
    for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(y[i]), i / 40 == 1);
}

PLAIT_ON_EVERY_ISA(RmsNormTest);

}  // namespace
}  // namespace plait::cpu
