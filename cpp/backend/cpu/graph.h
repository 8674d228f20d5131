// Graphs of the ops that the CPU runs: the ops of a model, and private ops that lowering
// introduces.
#pragma once

#include <variant>

#include "backend/cpu/isa.h"
#include "backend/lowered_graph.h"
#include "graph/graph.h"

namespace plait::cpu {

class Threads;

// The rows of x rounded to int8 for products with quantised weights: codes, scales and sums, in
// 40 bytes for every 32 values (QuantizeRowsArgs).
struct QuantizeRows {
    Operand x;  // [..., m]
    static constexpr OpInfo kInfo{.name = "quantize_rows"};
    static constexpr auto kOperands = operands(&QuantizeRows::x);
    bool operator==(const QuantizeRows&) const = default;
};

// The rows of x rounded to BF16, for products in tiles (RoundRowsArgs).
struct RoundRows {
    Operand x;  // [..., m]
    int parts;
    static constexpr OpInfo kInfo{.name = "round_rows"};
    static constexpr auto kOperands = operands(&RoundRows::x);
    bool operator==(const RoundRows&) const = default;
};

// quantize_rows(rms_norm(x, weight)), with the same bits.
struct NormQuantize {
    Operand x;
    OptionalOperand weight;
    float epsilon;
    static constexpr OpInfo kInfo{.name = "norm_quantize", .fused = {"rms_norm", "quantize_rows"}};
    static constexpr auto kOperands = operands(&NormQuantize::x, &NormQuantize::weight);
    bool operator==(const NormQuantize&) const = default;
};

// quantize_rows(gate(g, up)), with the same bits.
struct GateQuantize {
    Operand g, up;
    Activation activation;
    static constexpr OpInfo kInfo{.name = "gate_quantize", .fused = {"gate", "quantize_rows"}};
    static constexpr auto kOperands = operands(&GateQuantize::g, &GateQuantize::up);
    bool operator==(const GateQuantize&) const = default;
};

// Sums over splits of the keys, so that threads can share the keys of few tokens.
struct AttendSplits {
    ops::Attend attend;
    static constexpr OpInfo kInfo{.name = "attend_splits"};
    static constexpr auto kOperands = operands(&AttendSplits::attend);
    bool operator==(const AttendSplits&) const = default;
};

// hadamard(rope(x)), with the same bits.
struct RopeHadamard {
    ops::Rope rope;
    int block;
    static constexpr OpInfo kInfo{.name = "rope_hadamard", .fused = {"rope", "hadamard"}};
    static constexpr auto kOperands = operands(&RopeHadamard::rope);
    bool operator==(const RopeHadamard&) const = default;
};

// store_rows(hadamard(x)), with the same bits.
struct StoreHadamard {
    Operand storage, x, rows;  // see StoreRows
    int block;
    static constexpr OpInfo kInfo{.name = "store_hadamard",
                                  .writes_storage = true,
                                  .in_place = true,
                                  .fused = {"hadamard", "store_rows"}};
    static constexpr auto kOperands =
        operands(&StoreHadamard::storage, &StoreHadamard::x, &StoreHadamard::rows);
    bool operator==(const StoreHadamard&) const = default;
};

// hadamard(attend), with the same bits.
struct AttendHadamard {
    ops::Attend attend;
    OptionalOperand splits;  // an AttendSplits whose sums are merged
    int block;
    static constexpr OpInfo kInfo{.name = "attend_hadamard", .fused = {"attend", "hadamard"}};
    static constexpr auto kOperands = operands(&AttendHadamard::attend, &AttendHadamard::splits);
    bool operator==(const AttendHadamard&) const = default;
};

// Attention that uses the sums of an AttendSplits.
struct AttendMerge {
    ops::Attend attend;
    Operand splits;
    static constexpr OpInfo kInfo{.name = "attend"};
    static constexpr auto kOperands = operands(&AttendMerge::attend, &AttendMerge::splits);
    bool operator==(const AttendMerge&) const = default;
};

template <typename Ops, typename... More>
struct Extend;
template <typename... Ops, typename... More>
struct Extend<std::variant<Ops...>, More...> {
    using Type = std::variant<Ops..., More...>;
};
using CpuOp = Extend<Op, QuantizeRows, RoundRows, NormQuantize, GateQuantize, AttendSplits,
                     AttendMerge, RopeHadamard, StoreHadamard, AttendHadamard>::Type;
static_assert(all_are_ops<CpuOp>);
using CpuNode = BasicNode<CpuOp>;

class CpuGraph final : public LoweredGraph {
public:
    CpuGraph(std::vector<CpuNode> nodes, GraphOutputs outputs, Threads& threads, Isa isa)
        : LoweredGraph(std::span<const CpuNode>(nodes), std::move(outputs)),
          nodes_(std::move(nodes)),
          threads_(threads),
          isa_(isa) {}

    std::unique_ptr<Executable> compile(const Segment& segment) override;

private:
    std::vector<CpuNode> nodes_;
    Threads& threads_;
    Isa isa_;
};

// A model's graph, translated into the ops that the CPU runs.
struct Lowered {
    std::vector<CpuNode> nodes;
    GraphOutputs outputs;
};

// Products read their rows in the form that the instruction set has for the weights: through a
// QuantizeRows or a RoundRows, one for each distinct x, or as they are.
// Attention over a cache of many rows reads sums of splits of the keys if several threads share the
// work. `fuse`: combines two ops into one, such as LinearAdd, NormQuantize or RopeHadamard, if no
// other node reads the result of the first. A fused op gives the same bits as the ops that it
// replaces.
Lowered lower(Graph graph, Isa isa, int threads, bool fuse);

}  // namespace plait::cpu
