// The elementwise kernels: activation functions for one register, loops over registers, and the
// kernels.
#include "backend/cpu/kernels/elementwise/elementwise.h"

#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

template <Activation kind>
PLAIT_INLINE F32 activated(F32 x) {
    if constexpr (kind == Activation::silu) {
        return x * sigmoid(x);
    } else if constexpr (kind == Activation::gelu) {
        // x Phi(x), with 1 - Phi(|x|) = erfc(|x| / sqrt 2) / 2
        const F32 beyond = F32::set(0.5f) * erfc_positive(abs(x) * F32::set(0.70710678118654752f));
        return x * select_less(x, F32::zero(), beyond, F32::set(1.0f) - beyond);
    } else if constexpr (kind == Activation::gelu_tanh) {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
        const F32 cubic = fma(x * x, F32::set(0.044715f), F32::set(1.0f)) * x;
        return x * sigmoid(cubic * F32::set(1.59576912160573071f));
    } else if constexpr (kind == Activation::relu) {
        return max(F32::zero(), x);
    } else if constexpr (kind == Activation::relu_squared) {
        const F32 positive = max(F32::zero(), x);
        return positive * positive;
    } else if constexpr (kind == Activation::sigmoid) {
        return sigmoid(x);
    } else if constexpr (kind == Activation::tanh) {
        return tanh(x);
    } else if constexpr (kind == Activation::exp) {
        return exp(x);
    } else {  // log(1 + exp(x))
        return max(F32::zero(), x) + log1p_unit(exp(negate(abs(x))));
    }
}

// Calls body(f), where f is the activation function `kind`.
template <typename Body>
PLAIT_INLINE void with_activation(Activation kind, Body body) {
    switch (kind) {
    case Activation::silu: return body([](F32 x) { return activated<Activation::silu>(x); });
    case Activation::gelu: return body([](F32 x) { return activated<Activation::gelu>(x); });
    case Activation::gelu_tanh:
        return body([](F32 x) { return activated<Activation::gelu_tanh>(x); });
    case Activation::relu: return body([](F32 x) { return activated<Activation::relu>(x); });
    case Activation::relu_squared:
        return body([](F32 x) { return activated<Activation::relu_squared>(x); });
    case Activation::sigmoid: return body([](F32 x) { return activated<Activation::sigmoid>(x); });
    case Activation::tanh: return body([](F32 x) { return activated<Activation::tanh>(x); });
    case Activation::softplus:
        return body([](F32 x) { return activated<Activation::softplus>(x); });
    case Activation::exp: return body([](F32 x) { return activated<Activation::exp>(x); });
    }
}

// y = f(a) for tasks begin <= task < end.
template <typename F>
PLAIT_INLINE void map(const ElementwiseArgs& args, const Frame& frame, int64_t begin, int64_t end,
                      F f) {
    const float* a = frame.at<const float>(args.a);
    float* y = frame.at<float>(args.y);
    const int64_t all = elements(args, frame);
    const int64_t stop = end * kElementsPerTask < all ? end * kElementsPerTask : all;
    int64_t i = begin * kElementsPerTask;
    for (; i + F32::kLanes <= stop; i += F32::kLanes) f(F32::load(a + i)).store(y + i);
    f(F32::load(a + i, stop - i)).store(y + i, stop - i);
}

// y = f(a, b), where each element of b serves `b_repeat` elements of a. After `b_period` elements,
// if that is set, b starts again.
template <typename F>
PLAIT_INLINE void zip_repeated(const ElementwiseArgs& args, const Frame& frame, int64_t begin,
                               int64_t end, F f) {
    const int64_t all = elements(args, frame);
    const int64_t stop = end * kElementsPerTask < all ? end * kElementsPerTask : all;
    for (int64_t start = begin * kElementsPerTask; start < stop;) {
        const int64_t element = start / args.b_repeat;
        const int64_t of_b = args.b_period == 0 ? element : element % args.b_period;
        const F32 b = F32::set(frame.at<const float>(args.b)[of_b]);
        const int64_t left = args.b_repeat - start % args.b_repeat;
        const int64_t n = left < stop - start ? left : stop - start;
        const float* a = frame.at<const float>(args.a) + start;
        float* y = frame.at<float>(args.y) + start;
        int64_t i = 0;
        for (; i + F32::kLanes <= n; i += F32::kLanes) f(F32::load(a + i), b).store(y + i);
        f(F32::load(a + i, n - i), b).store(y + i, n - i);
        start += n;
    }
}

// y = f(a, b).
template <typename F>
PLAIT_INLINE void zip(const ElementwiseArgs& args, const Frame& frame, int64_t begin, int64_t end,
                      F f) {
    if (args.b_repeat != 0) return zip_repeated(args, frame, begin, end, f);
    const float* a = frame.at<const float>(args.a);
    const float* b = frame.at<const float>(args.b);
    float* y = frame.at<float>(args.y);
    const int64_t all = elements(args, frame);
    const int64_t stop = end * kElementsPerTask < all ? end * kElementsPerTask : all;
    for (int64_t start = begin * kElementsPerTask; start < stop;) {
        const int64_t column = args.b_period == 0 ? start : start % args.b_period;
        int64_t n = stop - start;
        if (args.b_period != 0 && n > args.b_period - column) n = args.b_period - column;
        const float* as = a + start;
        const float* bs = b + column;
        float* ys = y + start;
        int64_t i = 0;
        for (; i + F32::kLanes <= n; i += F32::kLanes)
            f(F32::load(as + i), F32::load(bs + i)).store(ys + i);
        f(F32::load(as + i, n - i), F32::load(bs + i, n - i)).store(ys + i, n - i);
        start += n;
    }
}

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
