#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class ShortConvTest : public KernelTest {
protected:
    void check(int64_t channels, int64_t taps, bool has_bias) {
        const Floats weight = random_floats(static_cast<size_t>(channels * taps), random);
        const Floats bias = random_floats(static_cast<size_t>(channels), random);
        Recurrence op{.widths = {channels},
                      .y_width = channels,
                      .state_elements = channels * (taps - 1),
                      .run = {},
                      .step = {}};
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            ShortConvArgs args{};
            args.x = ref_to(inputs[0]);
            args.y = ref_to(y);
            args.weight = ref_to(weight);
            args.has_bias = has_bias;
            if (has_bias) args.bias = ref_to(bias);
            args.channels = channels;
            args.taps = taps;
            args.states = states;
            run_kernel(kernels().short_conv, args, frame,
                       static_cast<size_t>(taps * kConvChunk) * sizeof(float), cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            state.insert(state.end(), token[0], token[0] + channels);
            std::vector<double> y;
            for (int64_t c = 0; c < channels; ++c) {
                double sum = has_bias ? bias[c] : 0.0;
                for (int64_t j = 0; j < taps; ++j)
                    sum += double(weight[c * taps + j]) * state[j * channels + c];
                y.push_back(sum);
            }
            state.erase(state.begin(), state.begin() + channels);
            return y;
        };
        RecurrenceCheck(op, random).all();
    }
};

TEST_P(ShortConvTest, MatchesTheFormulaAndAnyCut) {  // S4-15
    for (const int64_t channels : {1, 3, 17, 33, 64, 300})
        for (const int64_t taps : {2, 3, 4, 9}) {
            SCOPED_TRACE(testing::Message() << channels << " channels, " << taps << " taps");
            check(channels, taps, channels % 2 == 1);
        }
}

// One tap remembers nothing.
TEST_P(ShortConvTest, OneTapHasNoState) { check(20, 1, true); }

PLAIT_ON_EVERY_ISA(ShortConvTest);

}  // namespace
}  // namespace plait::cpu
