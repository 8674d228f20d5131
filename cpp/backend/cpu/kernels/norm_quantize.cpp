// quantize_rows(rms_norm(x)), a row at a time.  References: theirs.
#include "backend/cpu/kernels/norm_loops.h"
#include "backend/cpu/kernels/quantize_block.h"

namespace plait::cpu::PLAIT_ISA {

int64_t norm_quantize_tasks(const void* raw, const Frame& frame) {
    return vector_tasks(static_cast<const NormArgs*>(raw)->vectors, frame);
}

// Scratch: a row of floats.
void norm_quantize(const void* raw, const Frame& frame, const Worker& worker, int64_t begin,
                   int64_t end) {
    const auto& args = *static_cast<const NormArgs*>(raw);
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
