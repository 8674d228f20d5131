// Loops that elementwise kernels share.
#pragma once

#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

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

}  // namespace plait::cpu::PLAIT_ISA
