// The sum of each vector of the last axis.  Reference: tests/reference/row_sum.py.
#include "backend/cpu/kernels/norm_loops.h"

namespace plait::cpu::PLAIT_ISA {

int64_t row_sum_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const NormArgs*>(raw)->vectors, frame);
}

void row_sum(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const NormArgs*>(raw);
    const int64_t n = args.vectors.width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v)
        frame.at<float>(args.y)[v] = sum_of(frame.at<const float>(args.x) + v * n, n);
}

}  // namespace plait::cpu::PLAIT_ISA
