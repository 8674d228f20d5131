#include "backend/cpu/products/products.h"

namespace plait::cpu::products {
namespace {

class Embed : public testing::TestWithParam<Case> {};

// The result is exactly the dequantised values, except for NaN weights.
TEST_P(Embed, GivesTheRowsOfTheTable) {
    const auto [isa, dtype] = GetParam();
    const std::vector<int32_t> tokens = {0, 36, 5, 5, 16, 31};
    const auto widths =
        is_block_type(dtype) ? std::vector<size_t>{512} : std::vector<size_t>{1, 48, 77};
    for (const size_t n : widths) {
        One one(isa, {dtype, {37, static_cast<int64_t>(n)}});
        const std::vector<float> table = one.values();
        std::vector<float> y(tokens.size() * n);
        EmbedArgs args{};
        args.tokens = fixed(tokens.data());
        args.y = fixed(y.data());
        args.fixed_rows = static_cast<int64_t>(tokens.size());
        args.table = one.packed();
        run(kernels(isa).embed, args, 2);
        for (size_t i = 0; i < y.size(); ++i)
            EXPECT_EQ(y[i], table[static_cast<size_t>(tokens[i / n]) * n + i % n]) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Embed, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace plait::cpu::products
