// y = x / max(sqrt(sum(x^2)), epsilon).  Reference: tests/reference/l2_norm.py.
#include "backend/cpu/kernels/norm_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t l2_norm_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const NormArgs*>(raw)->vectors, frame);
}

void l2_norm(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const NormArgs*>(raw);
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const float length = __builtin_sqrtf(sum_of_squares(x, args.vectors.width));
        write_scaled(args, frame, v, x, y, 1.0f / (length < args.epsilon ? args.epsilon : length));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
