// Kernels that work on vectors along the last axis of their operands, and how these are cut into
// tasks.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

struct Vectors {
    Extent extent;
    int64_t fixed_rows;
    int64_t per_row;  // vectors in a row of the extent: heads, or 1
    int64_t width;    // elements of a vector
};

PLAIT_INLINE int64_t vectors_per_task(const Vectors& v) {
    constexpr int64_t kTaskElements = 4096;
    return v.width < kTaskElements ? kTaskElements / v.width : 1;
}
PLAIT_INLINE int64_t count_vectors(const Vectors& v, const Frame& frame) {
    return frame.rows(v.extent, v.fixed_rows) * v.per_row;
}
PLAIT_INLINE int64_t vector_tasks(const Vectors& v, const Frame& frame) {
    return (count_vectors(v, frame) + vectors_per_task(v) - 1) / vectors_per_task(v);
}

// Vectors begin <= v < end.
struct VectorRange {
    int64_t begin, end;
};

// The vectors of tasks begin <= task < end.
PLAIT_INLINE VectorRange vectors_in(const Vectors& v, const Frame& frame, int64_t begin,
                                    int64_t end) {
    const int64_t per_task = vectors_per_task(v);
    const int64_t all = count_vectors(v, frame);
    return {begin * per_task, end * per_task < all ? end * per_task : all};
}

}  // namespace plait::cpu
