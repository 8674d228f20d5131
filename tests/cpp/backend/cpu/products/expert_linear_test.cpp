#include "backend/cpu/kernels/common/claim.h"
#include "backend/cpu/products/products.h"

namespace plait::cpu::products {
namespace {

struct Routing {
    int64_t rows, used, experts;
};

std::vector<int32_t> random_routes(const Routing& r, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> routes;
    for (int64_t i = 0; i < r.rows; ++i) {
        std::vector<int32_t> order(static_cast<size_t>(r.experts));
        for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
        std::shuffle(order.begin(), order.end(), random);
        for (int64_t j = 0; j < r.used; ++j) {
            routes.push_back(order[static_cast<size_t>(j)]);
            routes.push_back(0x3f000000);
        }
    }
    return routes;
}

class ExpertLinear : public testing::TestWithParam<Case> {};

// Each pair has the bits that linear gives for its row and its expert's matrix, for fewer and for
// more pairs than experts, with x by row and by rank.
TEST_P(ExpertLinear, IsTheLinearOfEachPairsExpert) {
    const auto [isa, dtype] = GetParam();
    const int64_t columns = is_block_type(dtype) ? 512 : 77, out = 40;
    for (const Routing r :
         {Routing{1, 2, 8}, Routing{3, 2, 8}, Routing{19, 3, 8}, Routing{2, 1, 1}}) {
        One one(isa, {dtype, {r.experts, out, columns}});
        const std::vector<int32_t> routes = random_routes(r, 3);
        const std::vector<float> bias = random_values(static_cast<size_t>(r.experts * out), 8);
        for (const bool by_rank : {false, true}) {
            const int64_t x_rows = by_rank ? r.rows * r.used : r.rows;
            const std::vector<float> values =
                random_values(static_cast<size_t>(x_rows * columns), 2);
            const Input x(isa, dtype, values, columns);
            const Routed routed{routes, r.rows, r.used, by_rank};
            for (const int64_t grain : {1000, 1, -2}) {
                const std::vector<float> y =
                    expert_linear(isa, one.packed(), x, routed, bias, grain);
                for (int64_t pair = 0; pair < r.rows * r.used; ++pair) {
                    const int64_t row = by_rank ? pair : pair / r.used;
                    const int32_t expert = routes[static_cast<size_t>(2 * pair)];
                    PackedWeight alone = one.packed();
                    alone.data += expert * alone.matrix_bytes;
                    const Input one_row(
                        isa, dtype,
                        {values.begin() + row * columns, values.begin() + (row + 1) * columns},
                        columns);
                    const std::vector<float> own(bias.begin() + expert * out,
                                                 bias.begin() + (expert + 1) * out);
                    const std::vector<float> expected = linear(isa, alone, one_row, 1, &own);
                    EXPECT_EQ(
                        std::vector<float>(y.begin() + pair * out, y.begin() + (pair + 1) * out),
                        expected)
                        << pair;
                }
            }
        }
    }
}

// The bits do not depend on whether results are committed in pieces. A thread that lost its claim
// writes nothing. A later run may have overwritten the routes by then, so it must not use them.
TEST_P(ExpertLinear, ClaimedTasksGiveTheSameBitsAndLostOnesNone) {
    const auto [isa, dtype] = GetParam();
    const int64_t columns = is_block_type(dtype) ? 256 : 77, out = 1027;
    for (const Routing r : {Routing{1, 2, 8}, Routing{3, 8, 8}, Routing{kRedoRows, 4, 5}}) {
        One one(isa, {dtype, {r.experts, out, columns}});
        const std::vector<int32_t> routes = random_routes(r, 3);
        const std::vector<float> bias = random_values(static_cast<size_t>(r.experts * out), 8);
        const Input x(isa, dtype, random_values(static_cast<size_t>(r.rows * columns), 2), columns);
        const auto made = [&](const std::vector<int32_t>& routed, int64_t grain, Claim* claim) {
            return expert_linear(isa, one.packed(), x, {routed, r.rows, r.used, false}, bias, grain,
                                 claim);
        };
        const std::vector<float> plain = made(routes, 1 << 20, nullptr);
        for (const int64_t grain : {1 << 20, 1, -3}) {
            Claim claim;
            claim.open();
            EXPECT_EQ(made(routes, grain, &claim), plain) << r.rows << " rows, " << grain;
            EXPECT_TRUE(claim.close());
        }
        Claim lost;
        lose(lost);
        const std::vector<int32_t> overwritten(routes.size(), 0x7f7f7f7f);
        EXPECT_EQ(made(overwritten, 1 << 20, &lost), std::vector<float>(plain.size(), 12345.0f));
        EXPECT_FALSE(lost.close());
    }
}

// A thread that lost its claim may read x and the routes after the run.
TEST(ExpertLinearRedo, RequiresFewRowsAndInputsThatOutliveTheRun) {
    ExpertLinearArgs args{};
    args.weight.lanes = 16;
    const auto may = [&](uint8_t x, uint8_t routes, int64_t rows, int32_t used) {
        args.x = {64, x};
        args.routes = {64, routes};
        args.fixed_rows = rows;
        args.used = used;
        return expert_linear_redo(args, Frame{});
    };
    EXPECT_TRUE(may(kArena, kArena, 1, 8) && may(kInputs, kArena, kRedoRows, 64));
    EXPECT_FALSE(may(kArena, kArena, kRedoRows + 1, 1));
    EXPECT_FALSE(may(kArena, kArena, kRedoRows, 65));  // outputs of a panel exceed the scratch
    EXPECT_FALSE(may(kOutput0, kArena, 1, 8));
    EXPECT_FALSE(may(kArena, kOutput1, 1, 8));
}

INSTANTIATE_TEST_SUITE_P(All, ExpertLinear, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace plait::cpu::products
