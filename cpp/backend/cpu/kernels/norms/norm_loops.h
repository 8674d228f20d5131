// Loops that the norms share. Sums are formed in four registers of partial sums, in an order that
// depends only on the length.
#pragma once

#include "backend/cpu/kernels/norms/norms.h"
#include "backend/cpu/simd/simd.h"

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

}  // namespace plait::cpu::PLAIT_ISA
