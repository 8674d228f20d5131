// The elementwise kernels.
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/elementwise/activation.h"
#include "backend/cpu/kernels/elementwise/elementwise_loops.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

int64_t elementwise_tasks(const ElementwiseArgs& args, const Frame& frame) {
    return (elements(args, frame) + kElementsPerTask - 1) / kElementsPerTask;
}

// y = a + b.  Reference: tests/reference/add.py.
void add(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a + b; });
}

// y = a - b.  Reference: tests/reference/sub.py.
void sub(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a - b; });
}

// y = a * b.  Reference: tests/reference/mul.py.
void mul(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
         int64_t end) {
    zip(args, frame, begin, end, [](F32 a, F32 b) { return a * b; });
}

// y = factor * x + offset.  Reference: tests/reference/scale.py.
void scale(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
           int64_t end) {
    const F32 factor = F32::set(args.parameter), offset = F32::set(args.second_parameter);
    map(args, frame, begin, end, [factor, offset](F32 x) { return fma(factor, x, offset); });
}

// y = cap * tanh(x / cap).  Reference: tests/reference/softcap.py.
void softcap(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
             int64_t end) {
    const F32 cap = F32::set(args.parameter);
    map(args, frame, begin, end, [cap](F32 x) { return cap * tanh(x / cap); });
}

// y = min(max(x, -limit), limit); NaN stays.  Reference: tests/reference/clamp.py.
void clamp(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
           int64_t end) {
    const F32 limit = F32::set(args.parameter);
    map(args, frame, begin, end, [limit](F32 x) { return min(limit, max(negate(limit), x)); });
}

// y = f(x), where f is an activation function.  Reference: tests/reference/activate.py.
void activate(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
              int64_t end) {
    with_activation(args.activation, [&](auto f) { map(args, frame, begin, end, f); });
}

// y = f(g) * up.  SwiGLU, arXiv:2002.05202.  Reference: tests/reference/gate.py.
void gate(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
          int64_t end) {
    with_activation(args.activation, [&](auto f) {
        zip(args, frame, begin, end, [f](F32 g, F32 up) { return f(g) * up; });
    });
}

// y = g' sigmoid(alpha g') (up' + 1), g' = min(g, limit), up' = clamp(up, -limit, limit): gpt-oss,
// arXiv:2508.10925.  Reference: tests/reference/clamped_swiglu.py.
void clamped_swiglu(const ElementwiseArgs& args, const Frame& frame, const Worker&, int64_t begin,
                    int64_t end) {
    const F32 alpha = F32::set(args.parameter), limit = F32::set(args.second_parameter);
    zip(args, frame, begin, end, [alpha, limit](F32 g, F32 up) {
        const F32 low = min(limit, g);  // the second operand where either is NaN
        const F32 clamped = min(limit, max(negate(limit), up));
        return low * sigmoid(alpha * low) * (clamped + F32::set(1.0f));
    });
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
