// The norms, and row_sum.
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/norms/norm_loops.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

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
