#include "products.h"

namespace plait::cpu::products {
namespace {

class Embed : public testing::TestWithParam<Case> {};

// Exactly the dequantised values, NaN weights aside.
TEST_P(Embed, GivesTheRowsOfTheTable) {
    const auto [isa, dtype] = GetParam();
    const int64_t rows = 37, columns = is_block_type(dtype) ? 512 : 77;
    One one(isa, {dtype, {rows, columns}});
    const std::vector<float> table = one.values();
    const std::vector<int32_t> tokens = {0, 36, 5, 5, 16, 31};
    std::vector<float> y(tokens.size() * static_cast<size_t>(columns));
    EmbedArgs args{};
    args.tokens = fixed(tokens.data());
    args.y = fixed(y.data());
    args.fixed_rows = static_cast<int64_t>(tokens.size());
    args.table = one.packed();
    run(kernels(isa).embed, &args, 2);
    for (size_t i = 0; i < y.size(); ++i) {
        const size_t n = static_cast<size_t>(columns);
        EXPECT_EQ(y[i], table[static_cast<size_t>(tokens[i / n]) * n + i % n]) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Embed, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace plait::cpu::products
