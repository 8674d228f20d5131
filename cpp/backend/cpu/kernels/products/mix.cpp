// y_i = sum over j, in order, of weights_ij x_j, for the vectors of each token.
// Reference: tests/reference/mix.py.
#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// A task is a vector of the result.
int64_t mix_tasks(const MixArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.outputs;
}

void mix(const MixArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task / args.outputs;
        const float* x = frame.at<const float>(args.x) + t * args.inputs * args.width;
        const float* weights = frame.at<const float>(args.weights) + task * args.inputs;
        float* y = frame.at<float>(args.y) + task * args.width;
        for (int64_t i = 0; i < args.width; i += F32::kLanes) {
            const int64_t n = args.width - i < F32::kLanes ? args.width - i : F32::kLanes;
            F32 total = F32::zero();
            for (int64_t j = 0; j < args.inputs; ++j)
                total = fma(F32::set(weights[j]), F32::load(x + j * args.width + i, n), total);
            total.store(y + i, n);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
