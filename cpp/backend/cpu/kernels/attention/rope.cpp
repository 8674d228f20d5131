// Rotary position embeddings.
#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/attention/rotate.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// Rotary position embedding. Su et al. 2021, arXiv:2104.09864:  for each pair (a, b) of a head
//   (a, b) -> (a cos - b sin, a sin + b cos)
// Elements from n_rot on are copied. Reference: tests/reference/rope.py.

// A task is a token.
int64_t rope_tasks(const RopeArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

// Scratch: n_rot floats.
void rope(const RopeArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
          int64_t end) {
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

// Cosine and sine of position * frequency for every pair, in double precision: a float is not
// precise enough for the positions of a long context. Reference: tests/reference/rope_table.py.

namespace {

constexpr int64_t kTokensPerTask = 16;

// M-RoPE (Qwen2-VL, arXiv:2409.12191): the sections assign pairs to axes, and repeat if they do not
// cover all pairs.
int64_t axis_of(const RopeTableArgs& args, int64_t pair) {
    const int32_t* s = args.sections;
    const int64_t covered = s[0] + s[1] + s[2] + s[3];
    if (covered == 0) return 0;
    int64_t at = pair % covered;
    int64_t axis = 0;
    while (at >= s[axis]) at -= s[axis++];
    return axis < args.axes ? axis : args.axes - 1;
}

}  // namespace

int64_t rope_table_tasks(const RopeTableArgs& args, const Frame& frame) {
    return (frame.rows(args.extent, args.fixed_rows) + kTokensPerTask - 1) / kTokensPerTask;
}

void rope_table(const RopeTableArgs& args, const Frame& frame, const Worker&, int64_t begin,
                int64_t end) {
    const int32_t* positions = frame.at<const int32_t>(args.positions);
    const float* factors = args.has_factors ? frame.at<const float>(args.factors) : nullptr;
    float* y = frame.at<float>(args.y);
    const int64_t all = frame.rows(args.extent, args.fixed_rows);
    const int64_t stop = end * kTokensPerTask < all ? end * kTokensPerTask : all;
    const int64_t pairs = args.frequencies.n_rot / 2;
    for (int64_t i = 0; i < pairs; ++i) {
        const double each = frequency(args.frequencies, i, factors ? factors[i] : 1.0);
        const int64_t axis = axis_of(args, i);
        for (int64_t t = begin * kTokensPerTask; t < stop; ++t) {
            const double angle = positions[t * args.axes + axis] * each;
            y[2 * (t * pairs + i)] = static_cast<float>(__builtin_cos(angle) * args.magnitude);
            y[2 * (t * pairs + i) + 1] = static_cast<float>(__builtin_sin(angle) * args.magnitude);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
