#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class Wkv7Test : public KernelTest {
protected:
    void check(int64_t heads, int64_t dim) {
        const int64_t width = heads * dim;
        Recurrence op{.widths = std::vector<int64_t>(6, width),  // r, w, k, v, a, b
                      .y_width = width,
                      .state_elements = width * dim,
                      .run = {},
                      .step = {}};
        // a and b as small as models make them: a state must not grow without bound.
        const auto small = [dim](float x) { return 0.5f * x / std::sqrt(static_cast<float>(dim)); };
        op.domain = {
            {}, [](float x) { return std::exp(-0.6f / (1 + std::exp(-x))); }, {}, {}, small, small};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            Wkv7Args args{};
            args.r = ref_to(inputs[0]);
            args.w = ref_to(inputs[1]);
            args.k = ref_to(inputs[2]);
            args.v = ref_to(inputs[3]);
            args.a = ref_to(inputs[4]);
            args.b = ref_to(inputs[5]);
            args.y = ref_to(y);
            args.states = {states, heads, dim, dim};
            run_kernel(kernels().wkv7, args, frame, 0, cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            std::vector<double> y;
            for (int64_t h = 0; h < heads; ++h) {
                const auto of = [&](int input, int64_t j) {
                    return double(token[input][h * dim + j]);
                };
                for (int64_t i = 0; i < dim; ++i) {
                    double* s = &state[(h * dim + i) * dim];  // [values, keys], as in the paper
                    double s_a = 0, sum = 0;
                    for (int64_t j = 0; j < dim; ++j) s_a += s[j] * of(4, j);
                    for (int64_t j = 0; j < dim; ++j) {
                        s[j] = s[j] * of(1, j) + s_a * of(5, j) + of(3, i) * of(2, j);
                        sum += s[j] * of(0, j);
                    }
                    y.push_back(sum);
                }
            }
            return y;
        };
        op.tolerance = 5e-5;
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(Wkv7Test, MatchesTheFormulaAndAnyCut) {  // S4-30
    for (const int64_t dim : {1, 3, 17, 33, 64}) {
        SCOPED_TRACE(dim);
        check(2, dim);
    }
}

PLAIT_ON_EVERY_ISA(Wkv7Test);

}  // namespace
}  // namespace plait::cpu
