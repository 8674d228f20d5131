// y = a - b.  Reference: tests/reference/sub.py.
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t sub_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void sub(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a - b; });
}

}  // namespace plait::cpu::PLAIT_ISA
