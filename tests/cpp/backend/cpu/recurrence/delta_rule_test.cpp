#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class DeltaRuleTest : public KernelTest {
protected:
    void check(int64_t heads, int64_t key_heads, int64_t key_dim, int64_t value_dim,
               bool tiled = false) {
        Recurrence op{.widths = {key_heads * key_dim, key_heads * key_dim, heads * value_dim, heads,
                                 heads},  // q, k, v, g, beta
                      .y_width = heads * value_dim,
                      .state_elements = heads * key_dim * value_dim,
                      .run = {},
                      .step = {}};
        const auto small = [=](float x) { return x / std::sqrt(static_cast<float>(key_dim)); };
        op.domain = {small,
                     small,
                     {},
                     [](float x) { return -std::exp(x); },
                     [](float x) { return 1 / (1 + std::exp(-x)); }};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            DeltaRuleArgs args{};
            args.q = ref_to(inputs[0]);
            args.k = ref_to(inputs[1]);
            args.v = ref_to(inputs[2]);
            args.g = ref_to(inputs[3]);
            args.beta = ref_to(inputs[4]);
            args.y = ref_to(y);
            args.key_heads = key_heads;
            args.tiled = tiled;
            args.states = {states, heads, key_dim, value_dim};
            run_kernel(kernels().delta_rule, args, frame, 0, cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            std::vector<double> y;
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t key_head = tiled ? h % key_heads : h / (heads / key_heads);
                const float* q = token[0] + key_head * key_dim;
                const float* k = token[1] + key_head * key_dim;
                for (int64_t j = 0; j < value_dim; ++j) {
                    const auto s = [&](int64_t i) -> double& {
                        return state[(h * key_dim + i) * value_dim + j];
                    };
                    double stored = 0, sum = 0;
                    for (int64_t i = 0; i < key_dim; ++i) {
                        s(i) *= std::exp(double(token[3][h]));
                        stored += k[i] * s(i);
                    }
                    const double delta = token[4][h] * (token[2][h * value_dim + j] - stored);
                    for (int64_t i = 0; i < key_dim; ++i) {
                        s(i) += k[i] * delta;
                        sum += q[i] * s(i);
                    }
                    y.push_back(sum);
                }
            }
            return y;
        };
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(DeltaRuleTest, MatchesTheFormulaAndAnyCut) {  // S4-15
    for (const int64_t value_dim : {1, 3, 17, 33, 64})
        for (const int64_t key_dim : {1, 5, 16}) {
            SCOPED_TRACE(testing::Message() << key_dim << " x " << value_dim);
            check(4, 2, key_dim, value_dim);
        }
    check(3, 1, 128, 40);
    check(3, 3, 8, 7);
}

TEST_P(DeltaRuleTest, TiledHeadsTakeKeyHeadsInTurn) {
    check(6, 2, 9, 19, /*tiled=*/true);
    check(6, 3, 16, 33, /*tiled=*/true);
}

PLAIT_ON_EVERY_ISA(DeltaRuleTest);

}  // namespace
}  // namespace plait::cpu
