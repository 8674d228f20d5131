// RMSNorm. Zhang & Sennrich 2019, arXiv:1910.07467:  y = x / sqrt(mean(x^2) + epsilon) * w
// Reference: tests/reference/rms_norm.py.
#include "backend/cpu/kernels/rms_norm.h"

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

int64_t rows_per_task(const RmsNormArgs& args) {
    return args.width < 4096 ? 4096 / args.width : 1;
}

int64_t rows(const RmsNormArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item;
}

// In four registers of partial sums, so that the last bits differ from a serial loop.
float sum_of_squares(const float* x, int64_t n) {
    F32 s[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
    int64_t i = 0;
    for (; i + 4 * F32::kLanes <= n; i += 4 * F32::kLanes) {
        for (int j = 0; j < 4; ++j) {
            const F32 v = F32::load(x + i + j * F32::kLanes);
            s[j] = fma(v, v, s[j]);
        }
    }
    for (; i < n; i += F32::kLanes) {
        const F32 v = n - i < F32::kLanes ? F32::load(x + i, n - i) : F32::load(x + i);
        s[0] = fma(v, v, s[0]);
    }
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}

}  // namespace

int64_t rms_norm_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const RmsNormArgs*>(raw);
    const int64_t per_task = rows_per_task(args);
    return (rows(args, frame) + per_task - 1) / per_task;
}

void rms_norm(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const RmsNormArgs*>(raw);
    const int64_t n = args.width;
    const int64_t all = rows(args, frame);
    const int64_t stop = end * rows_per_task(args) < all ? end * rows_per_task(args) : all;
    const float* w = args.has_weight ? frame.at<const float>(args.weight) : nullptr;
    for (int64_t r = begin * rows_per_task(args); r < stop; ++r) {
        const float* x = frame.at<const float>(args.x) + r * n;
        float* y = frame.at<float>(args.y) + r * n;
        const float mean = sum_of_squares(x, n) / static_cast<float>(n);
        const F32 scale = F32::set(1.0f / __builtin_sqrtf(mean + args.epsilon));
        for (int64_t i = 0; i < n; i += F32::kLanes) {
            const int64_t lanes = n - i;
            if (lanes >= F32::kLanes) {
                const F32 v = F32::load(x + i) * scale;
                (w ? v * F32::load(w + i) : v).store(y + i);
            } else {
                const F32 v = F32::load(x + i, lanes) * scale;
                (w ? v * F32::load(w + i, lanes) : v).store(y + i, lanes);
            }
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
