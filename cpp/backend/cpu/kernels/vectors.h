// Kernels that work on each vector of their operands' last axis, and the tasks of some of them.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct Vectors {
    uint8_t extent;
    int64_t fixed_rows;
    int64_t per_row;  // vectors in a row of the extent: heads, or 1
    int64_t width;    // elements
};

PLAIT_INLINE int64_t vectors_per_task(const Vectors& v) {
    return v.width < 4096 ? 4096 / v.width : 1;
}
PLAIT_INLINE int64_t count(const Vectors& v, const Frame& frame) {
    return frame.rows(v.extent, v.fixed_rows) * v.per_row;
}
PLAIT_INLINE int64_t vector_tasks(const Vectors& v, const Frame& frame) {
    return (count(v, frame) + vectors_per_task(v) - 1) / vectors_per_task(v);
}

// The vectors of tasks begin <= t < end: begin <= vector < end.
struct VectorRange {
    int64_t begin, end;
};
PLAIT_INLINE VectorRange vectors_in(const Vectors& v, const Frame& frame, int64_t begin,
                                    int64_t end) {
    const int64_t per_task = vectors_per_task(v);
    const int64_t all = count(v, frame);
    return {begin * per_task, end * per_task < all ? end * per_task : all};
}

}  // namespace plait::cpu
