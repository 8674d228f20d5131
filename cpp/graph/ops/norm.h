// Norms and sums over the last axis. A norm's weight and bias are [m], or have one element for each
// element of a row (heads or groups that each have their own weight). Both are optional.
#pragma once

#include "graph/op_info.h"

namespace plait {
namespace ops {

// y = x / sqrt(mean(x^2) + epsilon) * weight. Zhang & Sennrich 2019, arXiv:1910.07467
struct RmsNorm {
    Operand x;  // [..., m]
    OptionalOperand weight;
    float epsilon;
    static constexpr OpInfo kInfo{.name = "rms_norm", .row_wise = true};
    static constexpr auto kOperands = operands(&RmsNorm::x, &RmsNorm::weight);
    bool operator==(const RmsNorm&) const = default;
};

// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias. Ba et al. 2016, arXiv:1607.06450
struct LayerNorm {
    Operand x;  // [..., m]
    OptionalOperand weight, bias;
    float epsilon;
    static constexpr OpInfo kInfo{.name = "layer_norm", .row_wise = true};
    static constexpr auto kOperands = operands(&LayerNorm::x, &LayerNorm::weight, &LayerNorm::bias);
    bool operator==(const LayerNorm&) const = default;
};

// y = x / max(sqrt(sum(x^2)), epsilon)
struct L2Norm {
    Operand x;  // [..., m]
    float epsilon;
    static constexpr OpInfo kInfo{.name = "l2_norm", .row_wise = true};
    static constexpr auto kOperands = operands(&L2Norm::x);
    bool operator==(const L2Norm&) const = default;
};

struct RowSum {
    Operand x;  // [..., m]
    static constexpr OpInfo kInfo{.name = "row_sum", .row_wise = true};
    static constexpr auto kOperands = operands(&RowSum::x);
    bool operator==(const RowSum&) const = default;
};

}  // namespace ops

Value rms_norm(Value x, Value weight, float epsilon);                // [..., m], [m] -> [..., m]
Value layer_norm(Value x, Value weight, Value bias, float epsilon);  // [..., m], [m], [m]
Value l2_norm(Value x, float epsilon);                               // [..., m] -> [..., m]
Value row_sum(Value x);                                              // [..., m] -> [..., 1]

}  // namespace plait
