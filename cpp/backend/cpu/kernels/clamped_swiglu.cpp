// y = g' sigmoid(alpha g') (up' + 1), g' = min(g, limit), up' = clamp(up, -limit, limit): gpt-oss,
// arXiv:2508.10925.  Reference: tests/reference/clamped_swiglu.py.
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t clamped_swiglu_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void clamped_swiglu(const void* raw, const Frame& frame, const Worker&, int64_t begin,
                    int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    const F32 alpha = F32::set(args.number), limit = F32::set(args.second);
    zip(args, frame, begin, end, [alpha, limit](F32 g, F32 up) {
        const F32 low = min(limit, g);  // the second operand where either is NaN
        const F32 clamped = min(limit, max(negate(limit), up));
        return low * sigmoid(alpha * low) * (clamped + F32::set(1.0f));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
