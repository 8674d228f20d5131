#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class SsdScanTest : public KernelTest {
protected:
    void check(int64_t heads, int64_t groups, int64_t p, int64_t k) {
        Floats a = random_floats(static_cast<size_t>(heads), random);
        for (float& x : a) x = -std::exp(x);
        const Floats d = random_floats(static_cast<size_t>(heads), random);
        Recurrence op{.widths = {heads * p, heads, groups * k, groups * k},  // x, dt, b, c
                      .y_width = heads * p,
                      .state_elements = heads * p * k,
                      .run = {},
                      .step = {}};
        op.domain = {{}, [](float x) { return std::log1p(std::exp(x)); }};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            SsdScanArgs args{};
            args.x = ref_to(inputs[0]);
            args.dt = ref_to(inputs[1]);
            args.b = ref_to(inputs[2]);
            args.c = ref_to(inputs[3]);
            args.y = ref_to(y);
            args.a = ref_to(a);
            args.d = ref_to(d);
            args.groups = groups;
            args.states = {states, heads, k, p};
            run_kernel(kernels().ssd_scan, args, frame, 0, cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            std::vector<double> y;
            for (int64_t h = 0; h < heads; ++h) {
                const double dt = token[1][h], decay = std::exp(dt * a[h]);
                const int64_t group = h / (heads / groups);
                for (int64_t i = 0; i < p; ++i) {
                    const double x = token[0][h * p + i];
                    double sum = d[h] * x;
                    for (int64_t j = 0; j < k; ++j) {
                        double& s = state[(h * p + i) * k + j];
                        s = decay * s + dt * x * token[2][group * k + j];
                        sum += token[3][group * k + j] * s;
                    }
                    y.push_back(sum);
                }
            }
            return y;
        };
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(SsdScanTest, MatchesTheFormulaAndAnyCut) {  // S4-15
    for (const int64_t p : {1, 3, 17, 33, 64})
        for (const int64_t k : {1, 5, 16}) {
            SCOPED_TRACE(testing::Message() << p << " x " << k);
            check(4, 2, p, k);
        }
    check(3, 1, 40, 128);
    check(3, 3, 8, 7);
}

PLAIT_ON_EVERY_ISA(SsdScanTest);

}  // namespace
}  // namespace plait::cpu
