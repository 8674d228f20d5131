// The `used` experts with the largest scores, in descending order, each with its weight; ties go to
// the lower number. A score is a weight plus a bias. With groups, only experts of the best groups
// are candidates; a group's score is its largest score (DeepSeek-V2, arXiv:2405.04434) or the sum
// of its two largest (DeepSeek-V3, arXiv:2412.19437). Finally each weight is multiplied by the
// scale of its expert. Reference: tests/reference/route.py.
#include "backend/cpu/kernels/products/experts.h"

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// If the chosen weights sum to less than this, they are divided by it instead. It is the smallest
// normal f16, as in llama.cpp.
constexpr float kMinSum = 6.103515625e-5f;

struct Scratch {
    float *weights, *scores, *chosen, *groups;
    uint8_t *excluded, *groups_excluded;
};

Scratch scratch_of(const RouteArgs& args, unsigned char* memory) {
    Scratch s;
    s.weights = reinterpret_cast<float*>(memory);
    s.scores = s.weights + args.experts;
    s.chosen = s.scores + args.experts;
    s.groups = s.chosen + args.used;
    s.excluded = reinterpret_cast<uint8_t*>(s.groups + args.groups);
    s.groups_excluded = s.excluded + args.experts;
    return s;
}

void softmax(const float* x, float* y, int32_t n) {
    float largest = x[0];
    for (int32_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    F32 sums = F32::zero();
    for (int32_t i = 0; i < n; i += F32::kLanes) {
        const int32_t lanes = n - i < F32::kLanes ? n - i : F32::kLanes;
        exp_nonpositive(F32::load(x + i, lanes) - F32::set(largest)).store(y + i, lanes);
        sums = sums + F32::load(y + i, lanes);
    }
    const float all = sum(sums);
    for (int32_t i = 0; i < n; ++i) y[i] /= all;
}

void weigh(Gating gating, const float* logits, float* weights, int32_t n) {
    if (gating == Gating::softmax) return softmax(logits, weights, n);
    for (int32_t i = 0; i < n; i += F32::kLanes) {
        const int32_t lanes = n - i < F32::kLanes ? n - i : F32::kLanes;
        const F32 x = F32::load(logits + i, lanes);
        (gating == Gating::sigmoid ? sigmoid(x) : x).store(weights + i, lanes);
    }
}

// Returns the first of the largest scores that are not excluded, and excludes it. With NaN among
// the scores it still returns each index at most once.
int32_t take_best(const float* scores, uint8_t* excluded, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; ++i)
        if (!excluded[i] && (best < 0 || scores[i] > scores[best])) best = i;
    excluded[best] = 1;
    return best;
}

// Returns the sum of the largest `n_best` scores, of which there are 1 or 2.
float sum_of_largest(const float* scores, int32_t n, int32_t n_best) {
    if (n == 1) return scores[0];
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; ++i) {
        if (scores[i] > first) {
            second = first;
            first = scores[i];
        } else if (scores[i] > second) {
            second = scores[i];
        }
    }
    return n_best == 1 ? first : first + second;
}

// Excludes all experts but those of the best groups.
void choose_groups(const RouteArgs& args, const Scratch& s) {
    const int32_t size = args.experts / args.groups;
    for (int32_t g = 0; g < args.groups; ++g)
        s.groups[g] = sum_of_largest(s.scores + g * size, size, args.group_best);
    memset(s.excluded, 1, static_cast<size_t>(args.experts));
    memset(s.groups_excluded, 0, static_cast<size_t>(args.groups));
    for (int32_t i = 0; i < args.groups_used; ++i)
        memset(s.excluded + take_best(s.groups, s.groups_excluded, args.groups) * size, 0,
               static_cast<size_t>(size));
}

}  // namespace

// A task is a token.
int64_t route_tasks(const RouteArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void route(const RouteArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
           int64_t end) {
    const Scratch s = scratch_of(args, worker.scratch);
    const float* bias = args.has_bias ? frame.at<const float>(args.bias) : nullptr;
    const float* by_expert =
        args.has_expert_scale ? frame.at<const float>(args.expert_scale) : nullptr;
    for (int64_t t = begin; t < end; ++t) {
        weigh(args.gating, frame.at<const float>(args.logits) + t * args.experts, s.weights,
              args.experts);
        for (int32_t e = 0; e < args.experts; ++e)
            s.scores[e] = bias ? s.weights[e] + bias[e] : s.weights[e];
        memset(s.excluded, 0, static_cast<size_t>(args.experts));
        if (args.groups_used < args.groups) choose_groups(args, s);

        int32_t* y = frame.at<int32_t>(args.y) + t * args.used * 2;
        for (int32_t u = 0; u < args.used; ++u) {
            y[2 * u] = take_best(s.scores, s.excluded, args.experts);
            s.chosen[u] = s.weights[y[2 * u]];
        }
        if (args.gating == Gating::softmax_chosen) softmax(s.chosen, s.chosen, args.used);
        float all = 0.0f;
        for (int32_t u = 0; u < args.used; ++u) all += s.chosen[u];
        const float divisor = args.renormalize ? (all < kMinSum ? kMinSum : all) : 1.0f;
        for (int32_t u = 0; u < args.used; ++u) {
            float weight = s.chosen[u] / divisor * args.scale;
            if (by_expert) weight *= by_expert[y[2 * u]];
            memcpy(&y[2 * u + 1], &weight, sizeof weight);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
