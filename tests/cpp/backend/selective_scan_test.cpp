#include "backend/cpu/kernels/selective_scan.h"

#include "backend/recurrence.h"

namespace plait::cpu {
namespace {

class SelectiveScanTest : public KernelTest {
protected:
    void check(int64_t channels, int64_t k) {
        Floats a = random_floats(static_cast<size_t>(channels * k), random);
        for (float& x : a) x = -std::exp(x);
        const Floats d = random_floats(static_cast<size_t>(channels), random);
        Recurrence op{.widths = {channels, channels, k, k},  // x, dt, b, c
                      .y_width = channels,
                      .state_elements = channels * k,
                      .run = {},
                      .step = {}};
        op.domain = {{}, [](float x) { return std::log1p(std::exp(x)); }};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            SelectiveScanArgs args{};
            args.x = ref_to(inputs[0]);
            args.dt = ref_to(inputs[1]);
            args.y = ref_to(y);
            args.a = ref_to(a);
            args.d = ref_to(d);
            args.b = ref_to(inputs[2]);
            args.c = ref_to(inputs[3]);
            args.states = {states, 1, k, channels};
            run_kernel(kernels().selective_scan, args, frame,
                       static_cast<size_t>(k * kTileColumns) * sizeof(float), cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& h) {
            std::vector<double> y;
            for (int64_t i = 0; i < channels; ++i) {
                const double x = token[0][i], dt = token[1][i];
                double sum = d[i] * x;
                for (int64_t j = 0; j < k; ++j) {
                    double& state = h[i * k + j];
                    state = std::exp(dt * a[i * k + j]) * state + dt * x * token[2][j];
                    sum += token[3][j] * state;
                }
                y.push_back(sum);
            }
            return y;
        };
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(SelectiveScanTest, MatchesTheFormulaAndAnyCut) {  // S4-15
    for (const int64_t channels : {1, 3, 17, 33, 64, 100})
        for (const int64_t k : {1, 3, 16, 17}) {
            SCOPED_TRACE(testing::Message() << channels << " channels, state of " << k);
            check(channels, k);
        }
}

PLAIT_ON_EVERY_ISA(SelectiveScanTest);

}  // namespace
}  // namespace plait::cpu
