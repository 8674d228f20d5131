#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/products/products.h"

namespace plait::cpu::products {
namespace {

class HeadLinear : public testing::TestWithParam<Case> {};

// Each head has the bits that linear gives for it alone.
TEST_P(HeadLinear, IsTheLinearOfEachHead) {
    const auto [isa, dtype] = GetParam();
    const int64_t columns = is_block_type(dtype) ? 512 : 77, out = 40;
    for (const int64_t heads : {1, 3}) {
        One one(isa, {dtype, {heads, out, columns}});
        for (const int64_t n : {0, 1, 3, 19, 70}) {
            const std::vector<float> values =
                random_values(static_cast<size_t>(n * heads * columns), 2);
            const Input x(isa, dtype, values, columns);
            // Guards on both sides detect writes outside of the result.
            std::vector<float> y(static_cast<size_t>(n * heads * out) + 2);
            HeadLinearArgs args{};
            args.x = x.ref();
            args.y = fixed(y.data() + 1);
            args.fixed_rows = n;
            args.weight = one.packed();
            for (const int64_t grain : {1000, 1, -2}) {
                std::fill(y.begin(), y.end(), 12345.0f);
                run(kernels(isa).head_linear, args, grain,
                    static_cast<uint64_t>(product_scratch_bytes(args.weight)));
                for (int64_t i = 0; i < n * heads; ++i) {
                    PackedWeight alone = one.packed();
                    alone.data += i % heads * alone.matrix_bytes;
                    const Input head(
                        isa, dtype,
                        {values.begin() + i * columns, values.begin() + (i + 1) * columns},
                        columns);
                    const auto first = y.begin() + 1 + i * out;
                    const std::vector<float> own(first, first + out);
                    EXPECT_TRUE(same_rows(isa, own, linear(isa, alone, head, 1))) << i;
                }
                EXPECT_EQ(y.front(), 12345.0f);
                EXPECT_EQ(y.back(), 12345.0f);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, HeadLinear, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace plait::cpu::products
