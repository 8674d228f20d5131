// The loops of elementwise kernels.
#pragma once

#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// y = f(a) for tasks begin <= t < end.
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

// y = f(a, b) where each element of b is for `share` of a.
template <typename F>
PLAIT_INLINE void zip_shared(const ElementwiseArgs& args, const Frame& frame, int64_t begin,
                             int64_t end, F f) {
    const int64_t all = elements(args, frame);
    const int64_t stop = end * kElementsPerTask < all ? end * kElementsPerTask : all;
    for (int64_t start = begin * kElementsPerTask; start < stop;) {
        const F32 b = F32::set(frame.at<const float>(args.b)[start / args.share]);
        const int64_t left = args.share - start % args.share;
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
    if (args.share != 0) return zip_shared(args, frame, begin, end, f);
    const float* a = frame.at<const float>(args.a);
    const float* b = frame.at<const float>(args.b);
    float* y = frame.at<float>(args.y);
    const int64_t all = elements(args, frame);
    const int64_t stop = end * kElementsPerTask < all ? end * kElementsPerTask : all;
    for (int64_t start = begin * kElementsPerTask; start < stop;) {
        const int64_t column = args.width == 0 ? start : start % args.width;
        int64_t n = stop - start;
        if (args.width != 0 && n > args.width - column) n = args.width - column;
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
