// quantize_rows(f(g) * up), 32 columns at a time.  References: tests/reference/gate.py, linear.py.
#include "backend/cpu/kernels/gate_quantize.h"

#include "backend/cpu/kernels/activation.h"
#include "backend/cpu/kernels/quantize_block.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

constexpr int64_t kBlocksPerTask = 64;

int64_t blocks(const GateQuantizeArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item * (args.columns / 32);
}

}  // namespace

int64_t gate_quantize_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const GateQuantizeArgs*>(raw);
    return (blocks(args, frame) + kBlocksPerTask - 1) / kBlocksPerTask;
}

void gate_quantize(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const GateQuantizeArgs*>(raw);
    const float* g = frame.at<const float>(args.g);
    const float* up = frame.at<const float>(args.up);
    const int64_t n = args.columns;
    const int64_t all = blocks(args, frame), rows = all / (n / 32);
    const int64_t stop = end * kBlocksPerTask < all ? end * kBlocksPerTask : all;
    with_activation(args.how, [&](auto f) {
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
