#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class Wkv6Test : public KernelTest {
protected:
    void check(int64_t heads, int64_t dim) {
        const Floats u = random_floats(static_cast<size_t>(heads * dim), random);
        const int64_t width = heads * dim;
        Recurrence op{.widths = {width, width, width, width},  // r, k, v, w
                      .y_width = width,
                      .state_elements = width * dim,
                      .run = {},
                      .step = {}};
        op.domain = {{}, {}, {}, [](float x) { return std::exp(-std::exp(x)); }};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            Wkv6Args args{};
            args.r = ref_to(inputs[0]);
            args.k = ref_to(inputs[1]);
            args.v = ref_to(inputs[2]);
            args.w = ref_to(inputs[3]);
            args.u = ref_to(u);
            args.y = ref_to(y);
            args.states = {states, heads, dim, dim};
            run_kernel(kernels().wkv6, args, frame, 0, cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            std::vector<double> y(static_cast<size_t>(width));
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t i = 0; i < dim; ++i)
                    for (int64_t j = 0; j < dim; ++j) {
                        const int64_t key = h * dim + i, value = h * dim + j;
                        double& s = state[key * dim + j];
                        const double kv = double(token[1][key]) * token[2][value];
                        y[value] += token[0][key] * (s + u[key] * kv);
                        s = token[3][key] * s + kv;
                    }
            return y;
        };
        op.tolerance = 5e-5;
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(Wkv6Test, MatchesTheFormulaAndAnyCut) {  // S4-30
    for (const int64_t dim : {1, 3, 17, 33, 64}) {
        SCOPED_TRACE(dim);
        check(2, dim);
    }
}

PLAIT_ON_EVERY_ISA(Wkv6Test);

}  // namespace
}  // namespace plait::cpu
