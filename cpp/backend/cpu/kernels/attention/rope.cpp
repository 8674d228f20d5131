// Kernels that transform queries, keys and values: rotary embeddings, the Hadamard transform of
// quantised caches, and the temperature of queries.
#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/attention/rotate.h"

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
            if (args.hadamard) transform_blocks(y, args.width, args.hadamard);
        }
    }
}

// Cosine and sine of position * frequency for every pair, in double precision: a float is not
// precise enough for the positions of a long context. Reference: tests/reference/rope_table.py.

namespace {

constexpr int64_t kTokensPerTask = 16;

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
        const int64_t axis = axis_of_pair(args.sections, args.in_turn, i);
        const int64_t column = axis < args.axes ? axis : args.axes - 1;
        for (int64_t t = begin * kTokensPerTask; t < stop; ++t) {
            const double angle = positions[t * args.axes + column] * each;
            y[2 * (t * pairs + i)] = static_cast<float>(__builtin_cos(angle) * args.magnitude);
            y[2 * (t * pairs + i) + 1] = static_cast<float>(__builtin_sin(angle) * args.magnitude);
        }
    }
}

// Each block of a head times the orthonormal Hadamard matrix. Reference:
// tests/reference/hadamard.py.

// A task is a token.
int64_t hadamard_tasks(const HadamardArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void hadamard(const HadamardArgs& args, const Frame& frame, const Worker&, int64_t begin,
              int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
        const float* x = frame.at<const float>(args.x) + t * args.width;
        float* y = frame.at<float>(args.y) + t * args.width;
        if (y != x) memcpy(y, x, static_cast<size_t>(args.width) * sizeof(float));
        transform_blocks(y, args.width, args.block);
    }
}

// y = 1 + scale ln(1 + floor((position + offset) / length)).  Reference:
// tests/reference/temperature.py.

// One task: a token costs one logarithm.
int64_t temperature_tasks(const TemperatureArgs&, const Frame&) { return 1; }

void temperature(const TemperatureArgs& args, const Frame& frame, const Worker&, int64_t, int64_t) {
    const int32_t* positions = frame.at<const int32_t>(args.positions);
    float* y = frame.at<float>(args.y);
    const int64_t n = frame.rows(args.extent, args.fixed_rows);
    for (int64_t t = 0; t < n; ++t) {
        const int64_t steps = (int64_t{positions[t]} + args.offset) / args.length;
        y[t] =
            1.0f + args.scale * static_cast<float>(__builtin_log(1.0 + static_cast<double>(steps)));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
