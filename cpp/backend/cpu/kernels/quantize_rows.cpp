// Rows rounded to 8-bit integers with a scale for every 32 values, for products with block types.
// Reference: tests/reference/linear.py.
#include "backend/cpu/kernels/quantize_rows.h"

#include "backend/cpu/kernels/quantize_block.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

int64_t rows_per_task(const QuantizeRowsArgs& args) {
    return args.columns < 4096 ? 4096 / args.columns : 1;
}

int64_t rows(const QuantizeRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item;
}

}  // namespace

int64_t quantize_rows_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const QuantizeRowsArgs*>(raw);
    const int64_t per_task = rows_per_task(args);
    return (rows(args, frame) + per_task - 1) / per_task;
}

void quantize_rows(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const QuantizeRowsArgs*>(raw);
    const int64_t n = args.columns;
    const int64_t all = rows(args, frame);
    const int64_t stop = end * rows_per_task(args) < all ? end * rows_per_task(args) : all;
    for (int64_t r = begin * rows_per_task(args); r < stop; ++r) {
        const float* x = frame.at<const float>(args.x) + r * n;
        quantize_row(x, quantized_row(frame.at<unsigned char>(args.y), all, n, r), n);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
