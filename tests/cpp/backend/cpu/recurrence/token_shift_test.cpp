#include "backend/cpu/kernels/recurrence/states.h"

#include "backend/cpu/recurrence/recurrence.h"

namespace plait::cpu {
namespace {

class TokenShiftTest : public KernelTest {};

TEST_P(TokenShiftTest, MatchesTheFormulaAndAnyCut) {  // S4-30
    for (const int64_t width : {1, 3, 17, 33, 1024, 2500}) {
        SCOPED_TRACE(width);
        Recurrence op{
            .widths = {width}, .y_width = width, .state_elements = width, .run = {}, .step = {}};
        op.tolerance = 0;
        op.run = [&](const Frame& frame, const std::vector<Floats>& inputs, const StateArgs& states,
                     Floats& y, Cut cut) {
            const TokenShiftArgs args{ref_to(inputs[0]), ref_to(y), width, states};
            run_kernel(kernels().token_shift, args, frame, 0, cut);
        };
        op.step = [&](const std::vector<const float*>& token, std::vector<double>& state) {
            std::vector<double> y(token[0], token[0] + width);
            std::swap(y, state);
            return y;
        };
        RecurrenceCheck(op, random).all();
    }
}

PLAIT_ON_EVERY_ISA(TokenShiftTest);

}  // namespace
}  // namespace plait::cpu
