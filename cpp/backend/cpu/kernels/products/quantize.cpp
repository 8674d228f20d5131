// The kernels that quantise activation rows, for products with block types.
#include "backend/cpu/kernels/products/quantize.h"
#include "backend/cpu/kernels/elementwise/activation.h"
#include "backend/cpu/kernels/norms/norm_loops.h"
#include "backend/cpu/kernels/products/quantize_block.h"

namespace plait::cpu::PLAIT_ISA {

namespace {

int64_t rows_per_task(const QuantizeRowsArgs& args) {
    return args.columns < 4096 ? 4096 / args.columns : 1;
}

int64_t rows(const QuantizeRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item;
}

}  // namespace

int64_t quantize_rows_tasks(const QuantizeRowsArgs& args, const Frame& frame) {
    const int64_t per_task = rows_per_task(args);
    return (rows(args, frame) + per_task - 1) / per_task;
}

// Reference: tests/reference/linear.py.
void quantize_rows(const QuantizeRowsArgs& args, const Frame& frame, const Worker&, int64_t begin,
                   int64_t end) {
    const int64_t n = args.columns;
    const int64_t all = rows(args, frame);
    const int64_t stop = end * rows_per_task(args) < all ? end * rows_per_task(args) : all;
    for (int64_t r = begin * rows_per_task(args); r < stop; ++r) {
        const float* x = frame.at<const float>(args.x) + r * n;
        quantize_row(x, quantized_row(frame.at<unsigned char>(args.y), all, n, r), n);
    }
}

// quantize_rows(rms_norm(x)), a row at a time. Scratch: a row of floats.
// References: tests/reference/rms_norm.py, linear.py.
void norm_quantize(const NormArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
                   int64_t end) {
    const int64_t n = args.vectors.width;
    float* row = reinterpret_cast<float*>(worker.scratch);
    const int64_t all =
        frame.rows(args.vectors.extent, args.vectors.fixed_rows) * args.vectors.per_row;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v) {
        const float* x = frame.at<const float>(args.x) + v * n;
        const float mean = sum_of_squares(x, n) / static_cast<float>(n);
        write_scaled(args, frame, v, x, row, 1.0f / __builtin_sqrtf(mean + args.epsilon));
        quantize_row(row, quantized_row(frame.at<unsigned char>(args.y), all, n, v), n);
    }
}

namespace {

constexpr int64_t kBlocksPerTask = 64;

int64_t blocks(const GateQuantizeArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item * (args.columns / 32);
}

}  // namespace

int64_t gate_quantize_tasks(const GateQuantizeArgs& args, const Frame& frame) {
    return (blocks(args, frame) + kBlocksPerTask - 1) / kBlocksPerTask;
}

// quantize_rows(f(g) * up), 32 columns at a time.  References: tests/reference/gate.py, linear.py.
void gate_quantize(const GateQuantizeArgs& args, const Frame& frame, const Worker&, int64_t begin,
                   int64_t end) {
    const float* g = frame.at<const float>(args.g);
    const float* up = frame.at<const float>(args.up);
    const int64_t n = args.columns;
    const int64_t all = blocks(args, frame), rows = all / (n / 32);
    const int64_t stop = end * kBlocksPerTask < all ? end * kBlocksPerTask : all;
    with_activation(args.activation, [&](auto f) {
        for (int64_t i = begin * kBlocksPerTask; i < stop;) {
            const int64_t row = i / (n / 32), first = row * (n / 32);
            const int64_t last = stop < first + n / 32 ? stop : first + n / 32;
            const QuantizedRow y = quantized_row(frame.at<unsigned char>(args.y), rows, n, row);
            for (; i < last; ++i) {
                F32 v[kRegistersOf32];
                for (int j = 0; j < kRegistersOf32; ++j) {
                    const int64_t at = 32 * i + j * F32::kLanes;
                    v[j] = f(F32::load(g + at)) * F32::load(up + at);
                }
                const int64_t b = i - first;
                quantize_block(v, y.block_codes(b), y.block_scale(b), y.block_sums(b));
            }
        }
    });
}

}  // namespace plait::cpu::PLAIT_ISA
