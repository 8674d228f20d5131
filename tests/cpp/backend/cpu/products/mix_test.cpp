#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/kernel_harness.h"

namespace plait::cpu {
namespace {

class MixTest : public KernelTest {};

TEST_P(MixTest, EachTokenHasAMatrixOfItsOwn) {
    for (const int64_t width : {1, 7, 16, 33, 100})
        for (const auto& [inputs, outputs] : {std::pair{4, 4}, {1, 4}, {3, 1}, {5, 2}}) {
            const int64_t n = 6;
            const Floats x = random_floats(n * inputs * width, random);
            const Floats weights = random_floats(n * outputs * inputs, random);
            Floats y(n * outputs * width + 1);
            y[y.size() - 1] = 42.0f;
            MixArgs args{};
            args.x = ref_to(x);
            args.weights = ref_to(weights);
            args.y = ref_to(y);
            args.extent = Extent::tokens;
            args.inputs = inputs;
            args.outputs = outputs;
            args.width = width;
            run_kernel(kernels().mix, args, tokens(n), 0, Cut::random);
            for (int64_t v = 0; v < n * outputs; ++v)
                for (int64_t i = 0; i < width; ++i) {
                    double sum = 0;
                    for (int64_t j = 0; j < inputs; ++j)
                        sum += double(weights[v * inputs + j]) *
                               x[(v / outputs * inputs + j) * width + i];
                    ASSERT_TRUE(near(y[v * width + i], sum, 1e-5)) << v << ", " << i;
                }
            EXPECT_EQ(y[y.size() - 1], 42.0f);
        }
}

PLAIT_ON_EVERY_ISA(MixTest);

}  // namespace
}  // namespace plait::cpu
