// y = factor * x + offset.  Reference: tests/reference/scale.py.
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t scale_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void scale(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    const F32 factor = F32::set(args.number), offset = F32::set(args.second);
    map(args, frame, begin, end, [factor, offset](F32 x) { return fma(factor, x, offset); });
}

}  // namespace plait::cpu::PLAIT_ISA
