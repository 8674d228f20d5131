// y = elements begin to begin + width of each vector of x.  Reference: tests/reference/slice_.py.
#include "backend/cpu/kernels/slice.h"

#include <string.h>

namespace plait::cpu::PLAIT_ISA {

int64_t slice_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const SliceArgs*>(raw)->vectors, frame);
}

void slice(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const SliceArgs*>(raw);
    const int64_t n = args.vectors.width;
    const VectorRange range = vectors_in(args.vectors, frame, begin, end);
    for (int64_t v = range.begin; v < range.end; ++v)
        memcpy(frame.at<float>(args.y) + v * n,
               frame.at<const float>(args.x) + v * args.x_width + args.begin,
               static_cast<size_t>(n) * sizeof(float));
}

}  // namespace plait::cpu::PLAIT_ISA
