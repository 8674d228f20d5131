// Ops that a backend makes when it lowers a graph; no model has them.
#pragma once

#include "graph/ops/attention.h"
#include "graph/ops/elementwise.h"

namespace plait::ops {

// x rounded to int8 for products with quantised weights: 40 bytes for every 32 values.
struct QuantizeRows {
    Operand x;
    static constexpr OpInfo kInfo{.name = "quantize_rows"};
    static constexpr auto kOperands = operands(&QuantizeRows::x);
    bool operator==(const QuantizeRows&) const = default;
};

struct NormQuantize {
    Operand x;
    OptionalOperand weight;
    float epsilon;
    static constexpr OpInfo kInfo{.name = "norm_quantize", .fused = {"rms_norm", "quantize_rows"}};
    static constexpr auto kOperands = operands(&NormQuantize::x, &NormQuantize::weight);
    bool operator==(const NormQuantize&) const = default;
};

struct GateQuantize {
    Operand g, up;
    Activation activation;
    static constexpr OpInfo kInfo{.name = "gate_quantize", .fused = {"gate", "quantize_rows"}};
    static constexpr auto kOperands = operands(&GateQuantize::g, &GateQuantize::up);
    bool operator==(const GateQuantize&) const = default;
};

// Sums over splits of the keys, which AttendMerge adds up.
struct AttendSplits {
    Attend attend;
    static constexpr OpInfo kInfo{.name = "attend_splits"};
    static constexpr auto kOperands = operands(&AttendSplits::attend);
    bool operator==(const AttendSplits&) const = default;
};

struct AttendMerge {
    Attend attend;
    Operand splits;
    static constexpr OpInfo kInfo{.name = "attend"};
    static constexpr auto kOperands = operands(&AttendMerge::attend, &AttendMerge::splits);
    bool operator==(const AttendMerge&) const = default;
};

}  // namespace plait::ops
