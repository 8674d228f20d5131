#version 450
#extension GL_GOOGLE_include_directive : require
// Chooses the `used` experts with the highest scores, in descending order, with their weights. Ties
// go to the expert with the lower number. If experts are in groups, only experts of the
// `groups_used` best groups are candidates; the score of a group is its highest score (DeepSeek-V2,
// arXiv:2405.04434) or the sum of its two highest (DeepSeek-V3, arXiv:2412.19437). A workgroup
// computes one row.
// Dispatch: rows.

const uint WORKGROUP = 64;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint EXPERTS = 8;
layout(constant_id = 1) const uint GROUPS = 1;  // groups of consecutive experts
layout(constant_id = 2) const uint GATING = 0;  // plait::Gating: 0 softmax, 1 sigmoid, 2 softmax_chosen
#include "lib/frame.glsl"
#include "lib/reduce.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref logits, bias;  // [rows, EXPERTS], [EXPERTS]
    Ref expert_scale;  // [EXPERTS], multiplies the weights
    Ref y;             // [rows, used, 2] i32: expert, weight as float bits
    Rows rows;
    uint used, groups_used;
    uint group_best;  // 1 or 2 scores are summed for the score of a group
    uint has_bias, has_expert_scale, renormalize;
    float scale;
};
#include "lib/push.glsl"

// Lower bound of the divisor when weights are renormalized: the smallest normal f16, as in
// llama.cpp.
const float MIN_SUM = 6.103515625e-5;

shared float weights[EXPERTS];
shared float scores[EXPERTS];
shared bool excluded[EXPERTS];
shared float group_scores[GROUPS];
shared bool group_excluded[GROUPS];
shared int candidates[WORKGROUP];

// Returns the expert with the higher score; -1 means no expert. NaN scores compare false, so that a
// row of NaN still yields distinct experts.
int better(int a, int b) {
    if (a < 0 || b < 0)
        return max(a, b);
    return scores[b] > scores[a] || (scores[b] == scores[a] && b < a) ? b : a;
}

// Returns the best expert that is not excluded, and excludes it.
int take() {
    const uint me = gl_LocalInvocationIndex;
    int best = -1;
    for (uint e = me; e < EXPERTS; e += WORKGROUP)
        if (!excluded[e])
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
        excluded[best] = true;
    barrier();
    return best;
}

// Computes weights and scores of all experts.
void weigh(uint row) {
    const uint me = gl_LocalInvocationIndex;
    Floats logits = Floats(address(args.logits) + 4ul * row * EXPERTS);
    float max_logit = logits.v[0], sum = 0.0;
    if (GATING == 0) {
        for (uint e = 1; e < EXPERTS; ++e)
            max_logit = max(max_logit, logits.v[e]);
        for (uint e = me; e < EXPERTS; e += WORKGROUP)
            sum += exp(logits.v[e] - max_logit);
        sum = workgroup_sum(sum);
    }
    for (uint e = me; e < EXPERTS; e += WORKGROUP) {
        const float x = logits.v[e];
        weights[e] = GATING == 0 ? exp(x - max_logit) / sum : GATING == 1 ? 1.0 / (1.0 + exp(-x)) : x;
        scores[e] = weights[e] + (args.has_bias != 0 ? floats(args.bias).v[e] : 0.0);
        excluded[e] = false;
    }
    barrier();
}

float sum_of_largest(uint first, uint n) {
    if (n == 1)
        return scores[first];
    float best = -1.0 / 0.0, second = best;
    for (uint e = first; e < first + n; ++e) {
        second = max(second, min(best, scores[e]));
        best = max(best, scores[e]);
    }
    return args.group_best == 1 ? best : best + second;
}

// Excludes all experts outside of the best groups.
void choose_groups() {
    const uint me = gl_LocalInvocationIndex, size = EXPERTS / GROUPS;
    for (uint g = me; g < GROUPS; g += WORKGROUP) {
        group_scores[g] = sum_of_largest(g * size, size);
        group_excluded[g] = true;
    }
    barrier();
    if (me == 0)
        for (uint i = 0; i < args.groups_used; ++i) {
            int best = -1;
            for (uint g = 0; g < GROUPS; ++g)
                if (group_excluded[g] && (best < 0 || group_scores[g] > group_scores[best]))
                    best = int(g);
            group_excluded[best] = false;
        }
    barrier();
    for (uint e = me; e < EXPERTS; e += WORKGROUP)
        excluded[e] = group_excluded[e / size];
    barrier();
}

// Writes the weights of the chosen experts. They are few, so one invocation does it.
void write_weights(Ints y) {
    float max_logit = weights[y.v[0]], total = 0.0;
    for (uint u = 1; u < args.used; ++u)
        max_logit = max(max_logit, weights[y.v[2 * u]]);
    for (uint u = 0; u < args.used; ++u) {
        const float weight = weights[y.v[2 * u]];
        total += GATING == 2 ? exp(weight - max_logit) : weight;
    }
    float divisor = GATING == 2 ? total : 1.0;
    if (args.renormalize != 0)
        divisor *= GATING == 2 ? 1.0 : max(total, MIN_SUM);
    for (uint u = 0; u < args.used; ++u) {
        const int expert = y.v[2 * u];
        const float chosen = GATING == 2 ? exp(weights[expert] - max_logit) : weights[expert];
        const float weight = chosen / divisor * args.scale;
        y.v[2 * u + 1] = floatBitsToInt(
            args.has_expert_scale != 0 ? weight * floats(args.expert_scale).v[expert] : weight);
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
