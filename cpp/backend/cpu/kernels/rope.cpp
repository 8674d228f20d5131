// Rotary position embedding. Su et al. 2021, arXiv:2104.09864:  for each pair (a, b) of a head
//   (a, b) -> (a cos - b sin, a sin + b cos)
// Elements from n_rot on pass through. Reference: tests/reference/rope.py.
#include "backend/cpu/kernels/rope.h"

#include "backend/cpu/kernels/rotate.h"

namespace plait::cpu::PLAIT_ISA {

// A task is a token.
int64_t rope_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const RopeArgs*>(raw);
    return frame.rows(args.extent, args.fixed_rows);
}

// Scratch: n_rot floats.
void rope(const void* raw, const Frame& frame, const Worker& worker, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const RopeArgs*>(raw);
    const int64_t half = args.n_rot / 2;
    float* cosines = reinterpret_cast<float*>(worker.scratch);
    float* sines = cosines + half;
    for (int64_t t = begin; t < end; ++t) {
        const float* table = frame.at<const float>(args.table) + t * args.n_rot;
        for (int64_t i = 0; i < half; ++i) {
            cosines[i] = table[2 * i];
            sines[i] = table[2 * i + 1];
        }
        for (int64_t h = 0; h < args.heads; ++h) {
            const int64_t at = (t * args.heads + h) * args.width;
            const float* x = frame.at<const float>(args.x) + at;
            float* y = frame.at<float>(args.y) + at;
            if (args.interleaved)
                rotate_pairs(x, cosines, sines, y, half);
            else
                rotate_halves(x, cosines, sines, y, half);
            if (y != x)
                memcpy(y + args.n_rot, x + args.n_rot,
                       static_cast<size_t>(args.width - args.n_rot) * sizeof(float));
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
