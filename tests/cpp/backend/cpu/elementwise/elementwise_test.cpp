// Compares the elementwise kernels with plain double arithmetic.
#include "backend/cpu/kernels/elementwise/elementwise.h"

#include <functional>

#include "backend/cpu/kernel_harness.h"
#include "graph/graph.h"

namespace plait::cpu {
namespace {

class ElementwiseTest : public KernelTest {
protected:
    static ElementwiseArgs args_of(const Floats& a, const Floats* b, Floats& y, int64_t rows,
                                   int64_t width, bool broadcast) {
        ElementwiseArgs args{};
        args.a = ref_to(a);
        if (b) args.b = ref_to(*b);
        args.y = ref_to(y);
        args.extent = Extent::tokens;
        args.row_elements = rows == 0 ? width : static_cast<int64_t>(a.size()) / rows;
        args.b_period = broadcast ? width : 0;
        return args;
    }
};

double reference(Activation how, double x) {
    switch (how) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu: return std::isnan(x) ? x : std::max(0.0, x);
    case Activation::relu_squared: return std::isnan(x) ? x : std::max(0.0, x) * std::max(0.0, x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
    case Activation::softplus: return x > 40 ? x : std::log1p(std::exp(x));
    case Activation::exp: return std::exp(x);
    }
    return kNan;
}

constexpr Activation kActivations[] = {
    Activation::silu, Activation::gelu,         Activation::gelu_tanh,
    Activation::relu, Activation::relu_squared, Activation::sigmoid,
    Activation::tanh, Activation::softplus,     Activation::exp};

TEST_P(ElementwiseTest, SumsDifferencesAndProductsOfAnyLength) {
    const KernelOf<ElementwiseArgs> operations[] = {kernels().add, kernels().sub, kernels().mul};
    for (int64_t n = 0; n <= 35; ++n) {
        const Floats a = random_floats(n, random), b = random_floats(n, random);
        for (int which = 0; which < 3; ++which) {
            Floats y(n + 1);
            y[n] = 42.0f;
            const ElementwiseArgs args = args_of(a, &b, y, 1, n, /*broadcast=*/false);
            run_kernel(operations[which], args, tokens(1));
            for (int64_t i = 0; i < n; ++i) {
                const float expected[] = {a[i] + b[i], a[i] - b[i], a[i] * b[i]};
                EXPECT_EQ(y[i], expected[which]) << n;
            }
            EXPECT_EQ(y[n], 42.0f) << "wrote past the end of " << n;
        }
    }
}

TEST_P(ElementwiseTest, VectorOperandIsUsedForEveryRow) {
    for (const int64_t width : {1, 7, 16, 33, 300, 5000}) {
        const int64_t rows = 20;
        const Floats a = random_floats(rows * width, random), b = random_floats(width, random);
        Floats y(rows * width);
        const ElementwiseArgs args = args_of(a, &b, y, rows, width, /*broadcast=*/true);
        run_kernel(kernels().add, args, tokens(rows), 0, Cut::random);
        for (int64_t i = 0; i < rows * width; ++i) ASSERT_EQ(y[i], a[i] + b[i % width]) << i;
    }
}

TEST_P(ElementwiseTest, OneElementOfBServesAVector) {
    for (const int64_t share : {1, 7, 16, 33, 300, 5000}) {
        const int64_t rows = 9, per_row = 4, n = rows * per_row * share;
        const Floats a = random_floats(n, random), b = random_floats(rows * per_row, random);
        Floats y(n + 1);
        y[n] = 42.0f;
        ElementwiseArgs args = args_of(a, &b, y, 1, share, /*broadcast=*/false);
        args.row_elements = per_row * share;
        args.b_repeat = share;
        run_kernel(kernels().sub, args, tokens(rows), 0, Cut::random);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], a[i] - b[i / share]) << i;
        EXPECT_EQ(y[n], 42.0f);
    }
}

TEST_P(ElementwiseTest, OneElementOfBServesAVectorOfEveryRow) {
    for (const int64_t share : {1, 7, 16, 33, 1300}) {
        const int64_t rows = 9, heads = 4, n = rows * heads * share;
        const Floats a = random_floats(n, random), b = random_floats(heads, random);
        Floats y(n);
        ElementwiseArgs args = args_of(a, &b, y, 1, share, /*broadcast=*/false);
        args.row_elements = heads * share;
        args.b_repeat = share;
        args.b_period = heads;
        run_kernel(kernels().mul, args, tokens(rows), 0, Cut::random);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], a[i] * b[i / share % heads]) << i;
    }
}

TEST_P(ElementwiseTest, ClampKeepsWhatIsWithinTheLimit) {
    const Floats x({0.0f, -0.0f, 0.3f, -0.7f, 5.0f, -5.0f, 1e30f, kInf, -kInf, kNan});
    const auto n = static_cast<int64_t>(x.size());
    for (const float limit : {0.5f, 5.0f}) {
        Floats y(n);
        ElementwiseArgs args = args_of(x, nullptr, y, 1, n, false);
        args.parameter = limit;
        run_kernel(kernels().clamp, args, tokens(1));
        for (int64_t i = 0; i + 1 < n; ++i) EXPECT_EQ(y[i], std::clamp(x[i], -limit, limit)) << i;
        EXPECT_TRUE(std::isnan(y[n - 1]));
    }
}

TEST_P(ElementwiseTest, OneElementOfBServesAllOfA) {
    const int64_t rows = 9, width = 1031;
    const Floats a = random_floats(rows * width, random);
    const Floats b = random_floats(1, random);
    Floats y(rows * width);
    ElementwiseArgs args = args_of(a, &b, y, rows, width, /*broadcast=*/false);
    args.b_repeat = INT64_MAX;
    run_kernel(kernels().mul, args, tokens(rows), 0, Cut::random);
    for (int64_t i = 0; i < rows * width; ++i) ASSERT_EQ(y[i], a[i] * b[0]) << i;
}

TEST_P(ElementwiseTest, ScaleAndSoftcap) {
    const Floats x(
        {0.0f, -0.0f, 1e-30f, 0.3f, -0.7f, 5.0f, 29.0f, -31.0f, 500.0f, kInf, -kInf, kNan});
    const int64_t n = x.size();
    for (const float number : {30.0f, 0.5f}) {
        Floats y(n);
        ElementwiseArgs args = args_of(x, nullptr, y, 1, n, false);
        args.parameter = number;
        run_kernel(kernels().scale, args, tokens(1));
        for (int64_t i = 0; i < n; ++i) EXPECT_TRUE(near(y[i], number * x[i], 0)) << i;
        args.second_parameter = -1.25f;
        run_kernel(kernels().scale, args, tokens(1));
        for (int64_t i = 0; i < n; ++i)
            EXPECT_TRUE(near(y[i], number * double(x[i]) - 1.25, 1e-3)) << i;
        run_kernel(kernels().softcap, args, tokens(1));
        for (int64_t i = 0; i < n; ++i)
            EXPECT_TRUE(near(y[i], number * std::tanh(double(x[i]) / number), 3e-7 * number))
                << x[i];
    }
}

TEST_P(ElementwiseTest, ActivationsOverTheirRange) {
    Floats x(40000);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<float>(i) - 20000) / 500;
    for (const Activation how : kActivations) {
        Floats y(x.size());
        ElementwiseArgs args = args_of(x, nullptr, y, 1, x.size(), false);
        args.activation = how;
        run_kernel(kernels().activate, args, tokens(1), 0, Cut::random);
        for (size_t i = 0; i < x.size(); ++i) {
            const double expected = reference(how, x[i]);
            ASSERT_TRUE(near(y[i], expected, 1e-6 + 3e-7 * std::abs(expected)))
                << static_cast<int>(how) << " of " << x[i];
        }
    }
}

TEST_P(ElementwiseTest, ActivationsOfSpecialValues) {
    const Floats x({0.0f, -0.0f, 1e-40f, -1e-40f, 1e30f, -100.0f, -1000.0f, 1000.0f, kInf, kNan});
    for (const Activation how : kActivations) {
        Floats y(x.size());
        ElementwiseArgs args = args_of(x, nullptr, y, 1, x.size(), false);
        args.activation = how;
        run_kernel(kernels().activate, args, tokens(1));
        for (size_t i = 0; i < x.size(); ++i) {
            const double expected = static_cast<float>(reference(how, x[i]));
            EXPECT_TRUE(near(y[i], expected, 1e-6 + 3e-7 * std::abs(expected)))
                << static_cast<int>(how) << " of " << x[i];
        }
    }
}

TEST_P(ElementwiseTest, GateMultipliesTheActivationOfItsFirstOperand) {
    const int64_t rows = 9, width = 1031;
    const Floats g = random_floats(rows * width, random, 3.0f),
                 up = random_floats(rows * width, random);
    for (const Activation how : kActivations) {
        Floats y(g.size()), again(g.size());
        ElementwiseArgs args = args_of(g, &up, y, rows, width, false);
        args.activation = how;
        run_kernel(kernels().gate, args, tokens(rows), 0, Cut::random);
        for (size_t i = 0; i < g.size(); ++i) {
            const double expected = reference(how, g[i]) * up[i];
            ASSERT_TRUE(near(y[i], expected, 1e-5 + 1e-6 * std::abs(expected)));
        }
        // The bits are the same if the result replaces an operand, and for a single row.
        Floats in_place = g;
        args.a = args.y = ref_to(in_place);
        run_kernel(kernels().gate, args, tokens(rows));
        EXPECT_TRUE(same_bits(in_place, y));
        args.a = ref_to(g.data() + 5 * width);
        args.b = ref_to(up.data() + 5 * width);
        args.y = ref_to(again);
        run_kernel(kernels().gate, args, tokens(1));
        EXPECT_EQ(0, std::memcmp(again.data(), y.data() + 5 * width, width * sizeof(float)));
    }
}

TEST_P(ElementwiseTest, ClampedSwigluOnBothSidesOfItsLimit) {
    const std::vector<float> special = {0.0f,   -0.0f, 6.9f, 7.0f,  7.1f, -7.1f,
                                        -90.0f, 1e30f, kInf, -kInf, kNan};
    const double alpha = 1.702f, limit = 7.0;
    Floats g(600), up(600);
    for (size_t i = 0; i < g.size(); ++i) {
        g[i] = i < 121 ? special[i / 11] : std::normal_distribution<float>(0.0f, 8.0f)(random);
        up[i] = i < 121 ? special[i % 11] : std::normal_distribution<float>(0.0f, 8.0f)(random);
    }
    Floats y(601);
    y[600] = 42.0f;
    ElementwiseArgs args = args_of(g, &up, y, 1, 600, false);
    args.row_elements = 600;
    args.parameter = 1.702f;
    args.second_parameter = 7.0f;
    run_kernel(kernels().clamped_swiglu, args, tokens(1));
    for (size_t i = 0; i < g.size(); ++i) {
        const double low = g[i] > limit ? limit : double(g[i]);
        const double clamped = up[i] > limit ? limit : up[i] < -limit ? -limit : double(up[i]);
        double expected = low / (1 + std::exp(-alpha * low)) * (clamped + 1);
        if (g[i] == -kInf) expected = kNan;  // -inf * 0
        ASSERT_TRUE(near(y[i], expected, 1e-5 + 1e-6 * std::abs(expected))) << g[i] << ' ' << up[i];
    }
    EXPECT_EQ(y[600], 42.0f);
}

PLAIT_ON_EVERY_ISA(ElementwiseTest);

}  // namespace
}  // namespace plait::cpu
