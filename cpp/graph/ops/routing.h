// Mixtures of experts: the choice of experts, their products, and the sum of their results.
#pragma once

#include "graph/op_enums.h"
#include "graph/op_info.h"

namespace plait {

struct RouteParams {
    int n_used;        // experts per token
    bool renormalize;  // the chosen weights sum to one
    float scale;       // multiplies the weights
    Gating gating = Gating::softmax;
    // Groups of neighbouring experts: experts are chosen from the n_groups_used best groups only.
    // The score of a group is the sum of its `group_best` best experts, 1 (arXiv:2405.04434) or 2
    // (arXiv:2412.19437).
    int n_groups = 1;
    int n_groups_used = 1;
    int group_best = 2;
    bool operator==(const RouteParams&) const = default;
};

namespace ops {

// The n_used experts of largest score in descending order, and their weights. Ties go to the lower
// index.
struct Route {
    Operand logits;                // [n, e]
    OptionalOperand bias;          // [e], added to the score that chooses, not to the weight
    OptionalOperand expert_scale;  // [e], multiplies the weight of each expert at last
    RouteParams params;
    static constexpr OpInfo kInfo{.name = "route", .row_wise = true};
    static constexpr auto kOperands = operands(&Route::logits, &Route::bias, &Route::expert_scale);
    bool operator==(const Route&) const = default;
};

// Row (i, j) of the result is x of token i, or of (i, j), times the matrix of token i's j-th
// expert.
struct ExpertLinear {
    Operand x;             // [n, in] or [n, u, in]
    Operand weight;        // [e, out, in]
    Operand routes;        // [n, u, 2], from Route
    OptionalOperand bias;  // [e, out]
    static constexpr OpInfo kInfo{.name = "expert_linear", .row_wise = true};
    static constexpr auto kOperands = operands(&ExpertLinear::x, &ExpertLinear::weight,
                                               &ExpertLinear::routes, &ExpertLinear::bias);
    static constexpr auto kAdaptable = &ExpertLinear::weight;
    bool operator==(const ExpertLinear&) const = default;
};

// Sum over the experts of weight * y, in the order of the routes.
struct Combine {
    Operand y;       // [n, u, m]
    Operand routes;  // [n, u, 2]
    static constexpr OpInfo kInfo{.name = "combine", .row_wise = true};
    static constexpr auto kOperands = operands(&Combine::y, &Combine::routes);
    bool operator==(const Combine&) const = default;
};

}  // namespace ops

// [n, e], [e], [e] -> [n, u, 2] i32: the expert, and the bits of its f32 weight
Value route(Value logits, const RouteParams& params, Value bias = {}, Value expert_scale = {});
// [n, in] or [n, u, in], [e, out, in], [n, u, 2], [e, out] -> [n, u, out]
Value expert_linear(Value x, Value weight, Value routes, Value bias = {});
Value combine(Value y, Value routes);  // [n, u, m], [n, u, 2] -> [n, m]

}  // namespace plait
