// y = sum over ranks, in order, of weight * x.  Reference: tests/reference/combine.py.
#include "backend/cpu/kernels/combine.h"

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// A task is a token.
int64_t combine_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const CombineArgs*>(raw);
    return frame.rows(args.extent, args.fixed_rows);
}

void combine(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const CombineArgs*>(raw);
    for (int64_t t = begin; t < end; ++t) {
        const float* x = frame.at<const float>(args.x) + t * args.used * args.width;
        const int32_t* routes = frame.at<const int32_t>(args.routes) + t * args.used * 2;
        float* y = frame.at<float>(args.y) + t * args.width;
        for (int64_t i = 0; i < args.width; i += F32::kLanes) {
            const int64_t n = args.width - i < F32::kLanes ? args.width - i : F32::kLanes;
            F32 total = F32::zero();
            for (int64_t u = 0; u < args.used; ++u) {
                float weight;
                memcpy(&weight, &routes[2 * u + 1], sizeof weight);
                total = fma(F32::set(weight), F32::load(x + u * args.width + i, n), total);
            }
            total.store(y + i, n);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
