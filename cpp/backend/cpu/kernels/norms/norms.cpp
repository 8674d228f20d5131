// The norms, and row_sum. Sums are formed in four registers of partial sums, in an order that
// depends only on the length.
#include "backend/cpu/kernels/norms/norms.h"

#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

// Applies s = add(x_i, s) for all i and returns the sum. add(0, s) must be s, since lanes past the
// end are zeros.
template <typename Add>
PLAIT_INLINE float sum_over(const float* x, int64_t n, Add add) {
    F32 s[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
    int64_t i = 0;
    for (; i + 4 * F32::kLanes <= n; i += 4 * F32::kLanes)
        for (int j = 0; j < 4; ++j) s[j] = add(F32::load(x + i + j * F32::kLanes), s[j]);
    for (; i < n; i += F32::kLanes)
        s[0] = add(n - i < F32::kLanes ? F32::load(x + i, n - i) : F32::load(x + i), s[0]);
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}
PLAIT_INLINE float sum_of(const float* x, int64_t n) {
    return sum_over(x, n, [](F32 v, F32 s) { return s + v; });
}
PLAIT_INLINE float sum_of_squares(const float* x, int64_t n) {
    return sum_over(x, n, [](F32 v, F32 s) { return fma(v, v, s); });
}

// y = f(x, at), register by register. at(p) loads the elements of p with the indices of x.
template <typename F>
PLAIT_INLINE void each_register(const float* x, float* y, int64_t n, F f) {
    int64_t i = 0;
    for (; i + F32::kLanes <= n; i += F32::kLanes)
        f(F32::load(x + i), [i](const float* p) { return F32::load(p + i); }).store(y + i);
    if (i < n)
        f(F32::load(x + i, n - i), [i, n](const float* p) {
            return F32::load(p + i, n - i);
        }).store(y + i, n - i);
}

// y = x * scale * weight + bias for vector number v; weight and bias are optional.
PLAIT_INLINE void write_scaled(const NormArgs& args, const Frame& frame, int64_t v, const float* x,
                               float* y, float scale) {
    const int64_t n = args.vectors.width;
    const F32 by = F32::set(scale);
    if (!args.has_weight) return each_register(x, y, n, [by](F32 a, auto) { return a * by; });
    const int64_t first = v % args.weights * n;
    const float* w = frame.at<const float>(args.weight) + first;
    if (!args.has_bias)
        return each_register(x, y, n, [by, w](F32 a, auto at) { return a * by * at(w); });
    const float* b = frame.at<const float>(args.bias) + first;
    each_register(x, y, n, [by, w, b](F32 a, auto at) { return fma(a * by, at(w), at(b)); });
}

// Calls body(v, x, y) for each vector v of tasks begin <= task < end; y is as long as x.
template <typename Body>
PLAIT_INLINE void each_vector(const NormArgs& args, const Frame& frame, int64_t begin, int64_t end,
                              Body body) {
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v)
        body(v, frame.at<const float>(args.x) + v * args.vectors.width,
             frame.at<float>(args.y) + v * args.vectors.width);
}

int64_t norm_tasks(const NormArgs& args, const Frame& frame) {
    return vector_tasks(args.vectors, frame);
}

// RMSNorm. Zhang & Sennrich 2019, arXiv:1910.07467:  y = x / sqrt(mean(x^2) + epsilon) * w
// Reference: tests/reference/rms_norm.py.
void rms_norm(const NormArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t n = args.vectors.width;
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const float mean = sum_of_squares(x, n) / static_cast<float>(n);
        write_scaled(args, frame, v, x, y, 1.0f / __builtin_sqrtf(mean + args.epsilon));
    });
}

// Layer normalisation. Ba, Kiros & Hinton 2016, arXiv:1607.06450:
//   y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * w + b
// In two passes: mean(x^2) - mean(x)^2 would cancel where the mean is large.
// Reference: tests/reference/layer_norm.py.
void layer_norm(const NormArgs& args, const Frame& frame, const Worker&, int64_t begin,
                int64_t end) {
    const int64_t n = args.vectors.width;
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const F32 mean = F32::set(sum_of(x, n) / static_cast<float>(n));
        each_register(x, y, n, [mean](F32 a, auto) { return a - mean; });
        const float variance = sum_of_squares(y, n) / static_cast<float>(n);
        write_scaled(args, frame, v, y, y, 1.0f / __builtin_sqrtf(variance + args.epsilon));
    });
}

// y = x / max(sqrt(sum(x^2)), epsilon).  Reference: tests/reference/l2_norm.py.
void l2_norm(const NormArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    each_vector(args, frame, begin, end, [&](int64_t v, const float* x, float* y) {
        const float length = __builtin_sqrtf(sum_of_squares(x, args.vectors.width));
        write_scaled(args, frame, v, x, y, 1.0f / (length < args.epsilon ? args.epsilon : length));
    });
}

// The sum of each vector of the last axis.  Reference: tests/reference/row_sum.py.
void row_sum(const NormArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const int64_t n = args.vectors.width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v)
        frame.at<float>(args.y)[v] = sum_of(frame.at<const float>(args.x) + v * n, n);
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

}  // namespace plait::cpu::PLAIT_ISA
