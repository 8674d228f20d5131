#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

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

// A state of one after a token that adds nothing: what it decays by, from nothing to all of it.
TEST_P(SelectiveScanTest, DecaysByTheExponential) {
    std::vector<float> exponents = {0.0f, -0.0f, -1e-30f, -200.0f, -1e30f};
    for (float x = 1e-6f; x < 100.0f; x *= 1.01f) exponents.push_back(-x);
    const auto channels = static_cast<int64_t>(exponents.size());
    Floats x(static_cast<size_t>(2 * channels)), y(x.size()), storage(x.size()),
        d(exponents.size());
    std::fill_n(x.data(), channels, 1.0f);
    const std::vector<float> dt(x.size(), 1.0f), ones = {1.0f, 1.0f};
    const std::vector<int32_t> read = {0}, write = {1}, begin = {0, 2};
    SelectiveScanArgs args{};
    args.x = ref_to(x);
    args.dt = ref_to(dt);
    args.y = ref_to(y);
    args.a = ref_to(exponents);
    args.d = ref_to(d);
    args.b = args.c = ref_to(ones);
    args.states = {
        {ref_to(storage), ref_to(read), ref_to(write), ref_to(begin), channels}, 1, 1, channels};
    Frame frame = tokens(2);
    frame.n_sequences = 1;
    run_kernel(kernels().selective_scan, args, frame, kTileColumns * sizeof(float));
    for (int64_t c = 0; c < channels; ++c) {
        const double exponent = exponents[static_cast<size_t>(c)], expected = std::exp(exponent);
        const double error = expected * (2e-7 - 1.5e-7 * std::max(exponent, -120.0)) + 1e-44;
        EXPECT_TRUE(near(y[static_cast<size_t>(channels + c)], expected, error)) << exponent;
        EXPECT_EQ(y[static_cast<size_t>(c)], 1.0f);
    }
    EXPECT_EQ(y[static_cast<size_t>(channels)], 1.0f);
    EXPECT_EQ(y[static_cast<size_t>(channels + 4)], 0.0f);
}

PLAIT_ON_EVERY_ISA(SelectiveScanTest);

}  // namespace
}  // namespace plait::cpu
