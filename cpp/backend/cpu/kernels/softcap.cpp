// y = cap * tanh(x / cap).  Reference: tests/reference/softcap.py.
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t softcap_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void softcap(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    const F32 cap = F32::set(args.number);
    map(args, frame, begin, end, [cap](F32 x) { return cap * tanh(x / cap); });
}

}  // namespace plait::cpu::PLAIT_ISA
