// rms_norm, layer_norm, l2_norm and row_sum: against plain double arithmetic.
#include "backend/cpu/kernels/norms/norms.h"

#include "backend/cpu/kernel_harness.h"

namespace plait::cpu {
namespace {

constexpr float kEpsilon = 1e-5f;

// The number of vectors in a row of x, and the number that have different weights and biases.
struct Form {
    int64_t per_row = 1, weights = 0;
    bool bias = false;
};

class NormsTest : public KernelTest {
protected:
    static NormArgs args_of(const Floats& x, Floats& y, int64_t rows, Form form) {
        NormArgs args{};
        args.x = ref_to(x);
        args.y = ref_to(y);
        const int64_t width = static_cast<int64_t>(x.size()) / (rows * form.per_row);
        args.vectors = {Extent::tokens, 0, form.per_row, width};
        args.has_weight = form.weights != 0;
        args.has_bias = form.bias;
        args.weights = form.weights;
        args.epsilon = kEpsilon;
        return args;
    }

    Floats apply(const KernelOf<NormArgs>& kernel, const Floats& x, const Floats& weight,
                 const Floats& bias, int64_t rows, Form form, Cut cut = Cut::whole) {
        Floats y(x.size());
        NormArgs args = args_of(x, y, rows, form);
        args.weight = ref_to(weight);
        args.bias = ref_to(bias);
        run_kernel(kernel, args, tokens(rows), 0, cut);
        return y;
    }

    std::vector<KernelOf<NormArgs>> norms() const {
        return {kernels().rms_norm, kernels().layer_norm, kernels().l2_norm};
    }
};

// The factor that a norm applies to a vector, read from the vector's middle.
struct Formula {
    double middle = 0, scale = 0;
};
Formula rms_norm(const float* x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * x[i];
    return {0, 1 / std::sqrt(squares / n + kEpsilon)};
}
Formula layer_norm(const float* x, int64_t n) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    const double mean = sum / n;
    for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
    return {mean, 1 / std::sqrt(squares / n + kEpsilon)};
}
Formula l2_norm(const float* x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * x[i];
    return {0, 1 / std::max(std::sqrt(squares), double(kEpsilon))};
}

// With one weight for all vectors, one for each vector of a row, or none.
TEST_P(NormsTest, MatchTheirFormulas) {
    const int64_t rows = 3, per_row = 4;
    const std::pair<KernelOf<NormArgs>, Formula (*)(const float*, int64_t)> norms[] = {
        {kernels().rms_norm, rms_norm}, {kernels().layer_norm, layer_norm}};
    for (int64_t width = 1; width <= 67; ++width) {
        const Floats x = random_floats(rows * per_row * width, random);
        const Floats w = random_floats(per_row * width, random);
        const Floats b = random_floats(per_row * width, random);
        for (const auto& [kernel, formula] : norms) {
            for (const Form form : {Form{per_row, 0}, Form{per_row, 1}, Form{per_row, per_row},
                                    Form{per_row, 1, true}, Form{per_row, per_row, true}}) {
                const Floats y = apply(kernel, x, w, b, rows, form);
                for (int64_t v = 0; v < rows * per_row; ++v) {
                    const Formula f = formula(x.data() + v * width, width);
                    for (int64_t i = 0; i < width; ++i) {
                        double expected = (x[v * width + i] - f.middle) * f.scale;
                        const int64_t at = form.weights ? v % form.weights * width + i : 0;
                        if (form.weights) expected *= w[at];
                        if (form.bias) expected += b[at];
                        // If the elements are nearly equal, the scale magnifies the rounding of x.
                        const double tolerance = 2e-6 * (1 + std::abs(expected)) + 3e-7 * f.scale;
                        ASSERT_TRUE(near(y[v * width + i], expected, tolerance)) << width;
                    }
                }
            }
        }
    }
}

TEST_P(NormsTest, L2NormAndItsMinimumLength) {
    for (int64_t width = 1; width <= 67; ++width) {
        Floats x = random_floats(3 * width, random);
        for (int64_t i = 0; i < width; ++i) {
            x[width + i] = 0.0f;
            x[2 * width + i] *= 1e-8f;  // shorter than epsilon
        }
        const Floats y = apply(kernels().l2_norm, x, x, x, 3, {});
        for (int64_t i = 0; i < 3 * width; ++i) {
            const double expected = x[i] * l2_norm(x.data() + i / width * width, width).scale;
            ASSERT_TRUE(near(y[i], expected, 1e-6));
        }
    }
}

TEST_P(NormsTest, RowSumWritesOneNumberForEachVector) {
    for (int64_t width = 1; width <= 67; ++width) {
        const Floats x = random_floats(6 * width, random);
        Floats y(7);
        y[6] = 42.0f;
        const NormArgs args = args_of(x, y, 3, {.per_row = 2});
        run_kernel(kernels().row_sum, args, tokens(3), 0, Cut::single);
        for (int64_t v = 0; v < 6; ++v) {
            double expected = 0;
            for (int64_t i = 0; i < width; ++i) expected += x[v * width + i];
            ASSERT_TRUE(near(y[v], expected, 1e-5));
        }
        EXPECT_EQ(y[6], 42.0f);
    }
}

// With vectors far from zero, a variance computed from the mean of squares would cancel.
TEST_P(NormsTest, LayerNormOfVectorsFarFromZero) {
    const int64_t width = 1000;
    Floats x(width);
    for (int64_t i = 0; i < width; ++i) x[i] = 16384.0f + static_cast<float>(i % 2);
    const Floats y = apply(kernels().layer_norm, x, x, x, 1, {});
    const double expected = 0.5 / std::sqrt(0.25 + kEpsilon);
    for (int64_t i = 0; i < width; ++i) ASSERT_TRUE(near(y[i], i % 2 ? expected : -expected, 5e-3));
}

TEST_P(NormsTest, BitsOfAVectorDoNotDependOnOtherVectors) {
    for (const KernelOf<NormArgs>& kernel : norms()) {
        for (const int64_t width : {64, 576, 5000}) {
            const Floats x = random_floats(130 * width, random), w = random_floats(width, random),
                         b = random_floats(width, random);
            const Form form{.weights = 1, .bias = true};
            const Floats y = apply(kernel, x, w, b, 130, form);
            EXPECT_TRUE(same_bits(y, apply(kernel, x, w, b, 130, form, Cut::random)));
            Floats row(width);
            std::copy_n(x.data() + 77 * width, width, row.data());
            const Floats alone = apply(kernel, row, w, b, 1, form);
            EXPECT_EQ(0, std::memcmp(alone.data(), y.data() + 77 * width, width * sizeof(float)));
            Floats in_place = x;
            NormArgs args = args_of(in_place, in_place, 130, form);
            args.weight = ref_to(w);
            args.bias = ref_to(b);
            run_kernel(kernel, args, tokens(130));
            EXPECT_TRUE(same_bits(in_place, y));
        }
    }
}

TEST_P(NormsTest, NanStaysInItsVector) {
    Floats x = random_floats(3 * 40, random);
    x[45] = kNan;
    for (const KernelOf<NormArgs>& kernel : norms()) {
        const Floats y = apply(kernel, x, x, x, 3, {});
        for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(y[i]), i / 40 == 1);
    }
    Floats sums(3);
    run_kernel(kernels().row_sum, args_of(x, sums, 3, {}), tokens(3));
    for (int64_t v = 0; v < 3; ++v) EXPECT_EQ(std::isnan(sums[v]), v == 1);
}

PLAIT_ON_EVERY_ISA(NormsTest);

}  // namespace
}  // namespace plait::cpu
