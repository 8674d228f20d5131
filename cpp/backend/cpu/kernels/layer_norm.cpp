// Layer normalisation. Ba, Kiros & Hinton 2016, arXiv:1607.06450:
//   y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * w + b
// In two passes: mean(x^2) - mean(x)^2 would cancel where the mean is large.
// Reference: tests/reference/layer_norm.py.
#include "backend/cpu/kernels/norm_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t layer_norm_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const NormArgs*>(raw)->vectors, frame);
}

void layer_norm(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const NormArgs*>(raw);
    const int64_t n = args.vectors.width;
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const F32 mean = F32::set(sum_of(x, n) / static_cast<float>(n));
        each_register(x, y, n, [mean](F32 a, auto) { return a - mean; });
        const float variance = sum_of_squares(y, n) / static_cast<float>(n);
        write_scaled(args, frame, v, y, y, 1.0f / __builtin_sqrtf(variance + args.epsilon));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
