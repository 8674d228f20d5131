// Each vector of y = one of a, then one of b.  Reference: tests/reference/concat.py.
#include "backend/cpu/kernels/concat.h"

#include <string.h>

namespace plait::cpu::PLAIT_ISA {

int64_t concat_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const ConcatArgs*>(raw)->vectors, frame);
}

void concat(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const ConcatArgs*>(raw);
    const int64_t a_width = args.a_width;
    const int64_t b_width = args.vectors.width - a_width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v) {
        float* y = frame.at<float>(args.y) + v * args.vectors.width;
        const int64_t of_b = args.b_is_shared ? v / args.vectors.per_row : v;
        memcpy(y, frame.at<const float>(args.a) + v * a_width,
               static_cast<size_t>(a_width) * sizeof(float));
        memcpy(y + a_width, frame.at<const float>(args.b) + of_b * b_width,
               static_cast<size_t>(b_width) * sizeof(float));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
