// y = factor * x.  Reference: tests/reference/scale.py.
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t scale_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void scale(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    const F32 factor = F32::set(args.number);
    map(args, frame, begin, end, [factor](F32 x) { return factor * x; });
}

}  // namespace plait::cpu::PLAIT_ISA
