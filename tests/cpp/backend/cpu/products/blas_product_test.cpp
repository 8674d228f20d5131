#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "backend/cpu/blas/library.h"
#include "backend/cpu/products/products.h"
#include "support/odd_values.h"

namespace plait::cpu::products {
namespace {

void skip_without_openblas() {
    if (openblas_problem()) GTEST_SKIP() << "OpenBLAS cannot be used: " << openblas_problem();
    const std::vector<Isa> isas = built_isas();
    if (std::ranges::find(isas, isa_from_name("blas")) == isas.end())
        GTEST_SKIP() << "a build with PLAIT_BLAS=OFF";
}

class BlasProduct : public testing::TestWithParam<DType> {
protected:
    void SetUp() override { skip_without_openblas(); }
    Isa blas() const { return isa_from_name("blas"); }
    // More columns than one call of OpenBLAS takes; an odd number for types without blocks.
    int64_t columns() const { return is_block_type(GetParam()) ? 1280 : 1031; }
    Input input(const std::vector<float>& x) const { return {blas(), GetParam(), x, columns()}; }
};

// Compares with sums in double precision. The sizes are around those at which a product is cut into
// tasks and calls: 17 rows are the fewest, 256 rows and 128 outputs the most of a call.
TEST_P(BlasProduct, IsTheProductOfTheDequantisedValues) {
    const int64_t k = columns();
    for (const int64_t outputs : {1, 31, 131}) {
        One one(blas(), {GetParam(), {outputs, k}});
        const std::vector<float> w = one.values();
        const std::vector<float> bias = random_values(static_cast<size_t>(outputs), 3);
        for (const int64_t n : {17, 33, 255, 257, 275}) {
            const Input x = input(random_values(static_cast<size_t>(n * k), 7));
            const std::vector<float> residual = random_values(static_cast<size_t>(n * outputs), 4);
            const std::vector<float> y =
                linear(blas(), one.packed(), x, n, &bias, 1, nullptr, &residual);
            double worst = 0;
            for (int64_t i = 0; i < n * outputs; ++i) {
                const auto at = static_cast<size_t>(i);
                const float* row = &x.exact[static_cast<size_t>(i / outputs * k)];
                const float* weights = &w[static_cast<size_t>(i % outputs * k)];
                double sum = double{bias[at % static_cast<size_t>(outputs)]} + residual[at];
                double size = std::abs(sum);
                for (int64_t c = 0; c < k; ++c) {
                    sum += double{row[c]} * weights[c];
                    size += std::abs(double{row[c]} * weights[c]);
                }
                worst = std::max(worst, std::abs(y[at] - sum) / size);
            }
            EXPECT_LT(worst, 1e-6) << outputs << " outputs, " << n << " rows";
        }
    }
}

TEST_P(BlasProduct, TheSameCallHasTheSameBitsInAnyOrderOfItsTasks) {
    One one(blas(), {GetParam(), {300, columns()}});
    const int64_t n = 275;
    const Input x = input(random_values(static_cast<size_t>(n * columns()), 7));
    const std::vector<float> first = linear(blas(), one.packed(), x, n);
    for (const int64_t grain : {1 << 20, 1, 3, -1})
        EXPECT_EQ(linear(blas(), one.packed(), x, n, nullptr, grain), first) << grain;
}

// A value that is not finite reaches every output of its row, and no other row.
TEST_P(BlasProduct, NotANumberReachesItsRowAlone) {
    const int64_t n = 37, outputs = 45, bad_row = 20;
    One one(blas(), {GetParam(), {outputs, columns()}});
    const std::vector<float> clean = random_values(static_cast<size_t>(n * columns()), 9);
    const std::vector<float> expected = linear(blas(), one.packed(), input(clean), n);
    for (const float bad : {kNan, kInf}) {
        std::vector<float> values = clean;
        values[static_cast<size_t>(bad_row * columns() + columns() - 1)] = bad;
        const std::vector<float> y = linear(blas(), one.packed(), input(values), n);
        for (int64_t i = 0; i < n * outputs; ++i) {
            const float value = y[static_cast<size_t>(i)];
            if (i / outputs == bad_row)
                EXPECT_FALSE(std::isfinite(value)) << i;
            else
                EXPECT_EQ(value, expected[static_cast<size_t>(i)]) << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, BlasProduct, testing::ValuesIn(matrix_types()), [](const auto& type) {
    return std::string(plait::info(type.param).name);
});

// OpenBLAS has buffers for a limited number of calls; the others wait for one.
TEST(OpenBlas, MoreThreadsThanItSupports) {
    skip_without_openblas();
    if (testing::Test::IsSkipped()) return;
    constexpr int kRows = 64, kOutputs = 32, kColumns = 128, kThreads = 300;
    const std::vector<float> x(kRows * kColumns, 1.0f), w(kOutputs * kColumns, 2.0f);
    std::atomic<int> right = 0;
    std::atomic<bool> begin = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            begin.wait(false);
            std::vector<float> y(kRows * kOutputs);
            for (int turn = 0; turn < 20; ++turn)
                multiply_by_openblas(kRows, kOutputs, kColumns, x.data(), w.data(), y.data());
            right += y == std::vector<float>(y.size(), 20 * 2.0f * kColumns);
        });
    }
    begin = true;
    begin.notify_all();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, kThreads);
}

}  // namespace
}  // namespace plait::cpu::products
