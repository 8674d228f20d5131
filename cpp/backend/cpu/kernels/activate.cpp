// y = f(x), f one of eight.  Reference: tests/reference/activate.py.
#include "backend/cpu/kernels/activation.h"
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t activate_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void activate(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    with_activation(args.how, [&](auto f) { map(args, frame, begin, end, f); });
}

}  // namespace plait::cpu::PLAIT_ISA
