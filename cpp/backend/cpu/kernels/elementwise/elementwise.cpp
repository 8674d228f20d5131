// The elementwise kernels.
#include "backend/cpu/kernels/elementwise/activation.h"
#include "backend/cpu/kernels/elementwise/elementwise_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t elementwise_tasks(const ElementwiseArgs& args, const Frame& frame) {
    return (elements(args, frame) + kElementsPerTask - 1) / kElementsPerTask;
}

// y = a + b.  Reference: tests/reference/add.py.
void add(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a + b; });
}

// y = a - b.  Reference: tests/reference/sub.py.
void sub(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a - b; });
}

// y = a * b.  Reference: tests/reference/mul.py.
void mul(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a * b; });
}

// y = factor * x + offset.  Reference: tests/reference/scale.py.
void scale(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
           int64_t end) {
    const F32 factor = F32::set(args.parameter), offset = F32::set(args.second_parameter);
    map(args, frame, begin, end, [factor, offset](F32 x) { return fma(factor, x, offset); });
}

// y = cap * tanh(x / cap).  Reference: tests/reference/softcap.py.
void softcap(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
             int64_t end) {
    const F32 cap = F32::set(args.parameter);
    map(args, frame, begin, end, [cap](F32 x) { return cap * tanh(x / cap); });
}

// y = f(x), where f is an activation function.  Reference: tests/reference/activate.py.
void activate(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
              int64_t end) {
    with_activation(args.activation, [&](auto f) { map(args, frame, begin, end, f); });
}

// y = f(g) * up.  SwiGLU, arXiv:2002.05202.  Reference: tests/reference/gate.py.
void gate(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
          int64_t end) {
    with_activation(args.activation, [&](auto f) {
        zip(args, frame, begin, end, [f](F32 g, F32 up) { return f(g) * up; });
    });
}

// y = g' sigmoid(alpha g') (up' + 1), g' = min(g, limit), up' = clamp(up, -limit, limit): gpt-oss,
// arXiv:2508.10925.  Reference: tests/reference/clamped_swiglu.py.
void clamped_swiglu(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
                    int64_t end) {
    const F32 alpha = F32::set(args.parameter), limit = F32::set(args.second_parameter);
    zip(args, frame, begin, end, [alpha, limit](F32 g, F32 up) {
        const F32 low = min(limit, g);  // the second operand where either is NaN
        const F32 clamped = min(limit, max(negate(limit), up));
        return low * sigmoid(alpha * low) * (clamped + F32::set(1.0f));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
