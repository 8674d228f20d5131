#version 450
#extension GL_GOOGLE_include_directive : require
// The `used` experts of largest score, ties to the lower number, in descending order, each with its
// weight. Where there are groups, only the experts of the groups whose two best scores have the largest
// sums are candidates: DeepSeek-V3, arXiv:2412.19437. A workgroup has a row.
// Twin: cpp/backend/cpu/kernels/products/route.cpp. Dispatch: rows.

const uint WORKGROUP = 64;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint EXPERTS = 8;
layout(constant_id = 1) const uint GROUPS = 1;  // of neighbouring experts
layout(constant_id = 2) const uint GATING = 0;  // plait::Gating: softmax, sigmoid, softmax_chosen
#include "lib/frame.glsl"
#include "lib/reduce.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref logits, bias;  // [rows, EXPERTS], [EXPERTS]
    Ref y;             // [rows, used, 2] i32: expert, bits of its weight
    Rows rows;
    uint used, groups_used;
    uint has_bias, renormalize;
    float scale;
};
#include "lib/push.glsl"

// Chosen weights that sum up to less are divided by this: the least normal half, as in llama.cpp.
const float LEAST_SUM = 6.103515625e-5;

shared float weights[EXPERTS];
shared float scores[EXPERTS];
shared bool gone[EXPERTS];
shared float group_scores[GROUPS];
shared bool group_gone[GROUPS];
shared int candidates[WORKGROUP];

// The better of two experts by score; -1 is none. NaN is no reason to take none, or one twice.
int better(int a, int b) {
    if (a < 0 || b < 0)
        return max(a, b);
    return scores[b] > scores[a] || (scores[b] == scores[a] && b < a) ? b : a;
}

// The best that is left, which is gone then.
int take() {
    const uint me = gl_LocalInvocationIndex;
    int best = -1;
    for (uint e = me; e < EXPERTS; e += WORKGROUP)
        if (!gone[e])
            best = better(best, int(e));
    candidates[me] = best;
    barrier();
    for (uint width = WORKGROUP / 2; width > 0; width /= 2) {
        if (me < width)
            candidates[me] = better(candidates[me], candidates[me + width]);
        barrier();
    }
    best = candidates[0];
    barrier();
    if (me == 0)
        gone[best] = true;
    barrier();
    return best;
}

void weigh(uint row) {
    const uint me = gl_LocalInvocationIndex;
    Floats logits = Floats(address(args.logits) + 4ul * row * EXPERTS);
    float most = logits.v[0], sum = 0.0;
    if (GATING == 0) {
        for (uint e = 1; e < EXPERTS; ++e)
            most = max(most, logits.v[e]);
        for (uint e = me; e < EXPERTS; e += WORKGROUP)
            sum += exp(logits.v[e] - most);
        sum = workgroup_sum(sum);
    }
    for (uint e = me; e < EXPERTS; e += WORKGROUP) {
        const float x = logits.v[e];
        weights[e] = GATING == 0 ? exp(x - most) / sum : GATING == 1 ? 1.0 / (1.0 + exp(-x)) : x;
        scores[e] = weights[e] + (args.has_bias != 0 ? floats(args.bias).v[e] : 0.0);
        gone[e] = false;
    }
    barrier();
}

float sum_of_two_largest(uint first, uint n) {
    if (n == 1)
        return scores[first];
    float best = -1.0 / 0.0, second = best;
    for (uint e = first; e < first + n; ++e) {
        second = max(second, min(best, scores[e]));
        best = max(best, scores[e]);
    }
    return best + second;
}

// Leaves the experts of the best groups.
void choose_groups() {
    const uint me = gl_LocalInvocationIndex, size = EXPERTS / GROUPS;
    for (uint g = me; g < GROUPS; g += WORKGROUP) {
        group_scores[g] = sum_of_two_largest(g * size, size);
        group_gone[g] = true;
    }
    barrier();
    if (me == 0)
        for (uint i = 0; i < args.groups_used; ++i) {
            int best = -1;
            for (uint g = 0; g < GROUPS; ++g)
                if (group_gone[g] && (best < 0 || group_scores[g] > group_scores[best]))
                    best = int(g);
            group_gone[best] = false;
        }
    barrier();
    for (uint e = me; e < EXPERTS; e += WORKGROUP)
        gone[e] = group_gone[e / size];
    barrier();
}

// The row's weights once its experts are chosen: few, so one invocation has them all.
void write_weights(Ints y) {
    float most = weights[y.v[0]], all = 0.0;
    for (uint u = 1; u < args.used; ++u)
        most = max(most, weights[y.v[2 * u]]);
    for (uint u = 0; u < args.used; ++u) {
        const float weight = weights[y.v[2 * u]];
        all += GATING == 2 ? exp(weight - most) : weight;
    }
    float divisor = GATING == 2 ? all : 1.0;
    if (args.renormalize != 0)
        divisor *= GATING == 2 ? 1.0 : max(all, LEAST_SUM);
    for (uint u = 0; u < args.used; ++u) {
        const float weight = weights[y.v[2 * u]];
        y.v[2 * u + 1] =
            floatBitsToInt((GATING == 2 ? exp(weight - most) : weight) / divisor * args.scale);
    }
}

void main() {
    const uint n = rows_of(args.rows);
    for (uint row = gl_WorkGroupID.x; row < n; row += gl_NumWorkGroups.x) {
        weigh(row);
        if (args.groups_used < GROUPS)
            choose_groups();
        Ints y = Ints(address(args.y) + 8ul * row * args.used);
        for (uint u = 0; u < args.used; ++u) {
            const int expert = take();
            if (gl_LocalInvocationIndex == 0)
                y.v[2 * u] = expert;
        }
        if (gl_LocalInvocationIndex == 0)
            write_weights(y);
        barrier();
    }
}
