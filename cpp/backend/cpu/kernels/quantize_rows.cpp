// Rows rounded to 8-bit integers with a scale for every 32 values, for products with block types.
// Reference: tests/reference/linear.py.
#include "backend/cpu/kernels/quantize_rows.h"

#include "backend/cpu/simd/int8.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

constexpr int kRegistersOf32 = 32 / F32::kLanes;

PLAIT_INLINE void quantize_block(const float* x, int8_t* codes, float* scale, int16_t* sums) {
    F32 v[kRegistersOf32];
    F32 largest = F32::zero(), finite = F32::zero();
    for (int i = 0; i < kRegistersOf32; ++i) {
        v[i] = F32::load(x + i * F32::kLanes);
        largest = max(largest, abs(v[i]));
        finite = fma(v[i], F32::zero(), finite);
    }
    const float most = reduce_max(largest);
    const float zero = sum(finite);  // NaN where a value is not finite
    // Below 1e-30, 127 / most could overflow; such values count as zero.
    if (!(zero == 0.0f) || most < 1e-30f) {
        memset(codes, 0, 32);
        *scale = zero;
        sums[0] = sums[1] = 0;
        return;
    }
    const F32 inverse = F32::set(127.0f / most);
    for (int i = 0; i < kRegistersOf32; ++i) store_codes(v[i] * inverse, codes + i * F32::kLanes);
    *scale = most / 127.0f;
    sum_codes(codes, sums);
}

int64_t rows_per_task(const QuantizeRowsArgs& args) {
    return args.columns < 4096 ? 4096 / args.columns : 1;
}

int64_t rows(const QuantizeRowsArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.rows_per_item;
}

}  // namespace

int64_t quantize_rows_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const QuantizeRowsArgs*>(raw);
    const int64_t per_task = rows_per_task(args);
    return (rows(args, frame) + per_task - 1) / per_task;
}

void quantize_rows(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const QuantizeRowsArgs*>(raw);
    const int64_t n = args.columns;
    const int64_t all = rows(args, frame);
    const int64_t stop = end * rows_per_task(args) < all ? end * rows_per_task(args) : all;
    for (int64_t r = begin * rows_per_task(args); r < stop; ++r) {
        const float* x = frame.at<const float>(args.x) + r * n;
        unsigned char* y = frame.at<unsigned char>(args.y) + r * (n / 32 * 40);
        auto* codes = reinterpret_cast<int8_t*>(y);
        auto* scales = reinterpret_cast<float*>(y + n);
        auto* sums = reinterpret_cast<int16_t*>(y + n + n / 8);
        for (int64_t b = 0; b < n / 32; ++b)
            quantize_block(x + 32 * b, codes + 32 * b, scales + b, sums + 2 * b);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
