// The `used` experts of largest softmax weight, ties to the lower number, in descending order.
// Reference: tests/reference/route.py.
#include "backend/cpu/kernels/route.h"

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

void softmax(const float* x, float* y, int32_t n) {
    float most = x[0];
    for (int32_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
    F32 sums = F32::zero();
    for (int32_t i = 0; i < n; i += F32::kLanes) {
        const int32_t lanes = n - i < F32::kLanes ? n - i : F32::kLanes;
        exp(F32::load(x + i, lanes) - F32::set(most)).store(y + i, lanes);
        sums = sums + F32::load(y + i, lanes);
    }
    const float all = sum(sums);
    for (int32_t i = 0; i < n; ++i) y[i] /= all;
}

}  // namespace

// A task is a token.
int64_t route_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const RouteArgs*>(raw);
    return frame.rows(args.extent, args.fixed_rows);
}

// Scratch: `experts` floats.
void route(const void* raw, const Frame& frame, const Worker& worker, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const RouteArgs*>(raw);
    float* weights = reinterpret_cast<float*>(worker.scratch);
    constexpr float kTaken = -1.0f;
    for (int64_t t = begin; t < end; ++t) {
        softmax(frame.at<const float>(args.logits) + t * args.experts, weights, args.experts);
        int32_t* y = frame.at<int32_t>(args.y) + t * args.used * 2;
        float chosen = 0.0f;
        for (int32_t u = 0; u < args.used; ++u) {
            int32_t best = -1;
            for (int32_t e = 0; e < args.experts; ++e)
                if (weights[e] != kTaken && (best < 0 || weights[e] > weights[best])) best = e;
            y[2 * u] = best;
            memcpy(&y[2 * u + 1], &weights[best], sizeof(float));
            chosen += weights[best];
            weights[best] = kTaken;
        }
        for (int32_t u = 0; u < args.used; ++u) {
            float weight;
            memcpy(&weight, &y[2 * u + 1], sizeof weight);
            if (args.renormalize) weight /= chosen;
            weight *= args.scale;
            memcpy(&y[2 * u + 1], &weight, sizeof weight);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
