// RMSNorm. Zhang & Sennrich 2019, arXiv:1910.07467:  y = x / sqrt(mean(x^2) + epsilon) * w
// Reference: tests/reference/rms_norm.py.
#include "backend/cpu/kernels/norm_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t rms_norm_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const NormArgs*>(raw)->vectors, frame);
}

void rms_norm(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const NormArgs*>(raw);
    const int64_t n = args.vectors.width;
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const float mean = sum_of_squares(x, n) / static_cast<float>(n);
        write_scaled(args, frame, v, x, y, 1.0f / __builtin_sqrtf(mean + args.epsilon));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
