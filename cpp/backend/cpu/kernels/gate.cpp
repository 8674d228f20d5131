// y = f(g) * up.  SwiGLU, arXiv:2002.05202.  Reference: tests/reference/gate.py.
#include "backend/cpu/kernels/activation.h"
#include "backend/cpu/kernels/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t gate_tasks(const void* args, const Frame& frame) {
    return elementwise_tasks(*static_cast<const ElementwiseArgs*>(args), frame);
}

void gate(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ElementwiseArgs*>(raw);
    with_activation(args.how, [&](auto f) {
        zip(args, frame, begin, end, [f](F32 g, F32 up) { return f(g) * up; });
    });
}

}  // namespace plait::cpu::PLAIT_ISA
