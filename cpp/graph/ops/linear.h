// Products with weight matrices, and with matrices of each token.
#pragma once

#include "graph/op_info.h"

namespace plait {
namespace ops {

// y = x W^T (+ bias)
struct Linear {
    Operand x;             // [n, in]
    Operand weight;        // [out, in]
    OptionalOperand bias;  // [out]
    static constexpr OpInfo kInfo{.name = "linear", .row_wise = true};
    static constexpr auto kOperands = operands(&Linear::x, &Linear::weight, &Linear::bias);
    static constexpr auto kAdaptable = &Linear::weight;
    bool operator==(const Linear&) const = default;
};

// x W^T (+ bias) + residual. Made from Linear and Add by fuse_linear_add(); no model has it.
struct LinearAdd {
    Operand x;             // [n, in]
    Operand weight;        // [out, in]
    Operand residual;      // [n, out]
    OptionalOperand bias;  // [out]
    static constexpr OpInfo kInfo{
        .name = "linear_add", .row_wise = true, .fused = {"linear", "add"}};
    static constexpr auto kOperands =
        operands(&LinearAdd::x, &LinearAdd::weight, &LinearAdd::residual, &LinearAdd::bias);
    bool operator==(const LinearAdd&) const = default;
};

// Multiplies the row of head i by matrix i.
struct HeadLinear {
    Operand x;       // [n, h, in]
    Operand weight;  // [h, out, in]
    static constexpr OpInfo kInfo{.name = "head_linear", .row_wise = true};
    static constexpr auto kOperands = operands(&HeadLinear::x, &HeadLinear::weight);
    static constexpr auto kAdaptable = &HeadLinear::weight;
    bool operator==(const HeadLinear&) const = default;
};

// Mixes the vectors of each token by a matrix of the token: y_i = sum_j weights_ij x_j.
struct Mix {
    Operand x;        // [n, j, m]
    Operand weights;  // [n, i, j]
    static constexpr OpInfo kInfo{.name = "mix", .row_wise = true};
    static constexpr auto kOperands = operands(&Mix::x, &Mix::weights);
    bool operator==(const Mix&) const = default;
};

}  // namespace ops

// Quantised weights multiply rows of x rounded to int8, with one scale per 32 values.
Value linear(Value x, Value weight, Value bias = {});  // [n, in], [out, in], [out] -> [n, out]
Value head_linear(Value x, Value weight);              // [n, h, in], [h, out, in] -> [n, h, out]
Value mix(Value x, Value weights);                     // [n, j, m], [n, i, j] -> [n, i, m]

}  // namespace plait
