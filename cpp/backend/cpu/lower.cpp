#include "backend/cpu/graph.h"

#include <map>

#include "backend/cpu/kernels/attention/attend.h"
#include "backend/cpu/kernels/products/packed.h"
#include "base/error.h"
#include "graph/analysis.h"
#include "graph/rewrite.h"

namespace plait::cpu {
namespace {

template <typename T>
constexpr bool is_product =
    std::is_same_v<T, ops::Linear> || std::is_same_v<T, ops::LinearAdd> ||
    std::is_same_v<T, ops::HeadLinear> || std::is_same_v<T, ops::ExpertLinear>;

// The rows that a product reads, and their form.
struct ProductRows {
    NodeId x = kNoNode;  // kNoNode if they are read as they are
    RowForm form = RowForm::f32;
    auto operator<=>(const ProductRows&) const = default;
};

ProductRows rows_of(const Graph& graph, const IsaInfo& isa, const Op& op) {
    return std::visit(
        [&]<typename T>(const T& product) -> ProductRows {
            if constexpr (is_product<T>) {
                const RowForm form = row_form(isa, graph.node(product.weight).type.dtype);
                if (form != RowForm::f32 && graph.node(product.x).type.dtype == DType::f32)
                    return {product.x.id, form};
            }
            return {};
        },
        op);
}

class Lowering {
public:
    Lowering(const Graph& graph, Isa isa, int threads, bool fuse)
        : graph_(graph),
          isa_(*isa),
          threads_(threads),
          fuse_(fuse),
          other_uses_(count_uses(graph)),
          transformed_by_(graph.nodes().size(), kNoNode),
          is_stored_(graph.nodes().size()),
          renamed_(graph.nodes().size(), kNoNode) {
        for (const Node& node : graph.nodes())
            if (const NodeId x = quantized_rows(node.op); x != kNoNode) --other_uses_[x];
    }

    Lowered run() {
        // A value that is read only by products can be quantised by the op that computes it.
        std::vector<bool> quantized(graph_.nodes().size());
        for (const Node& node : graph_.nodes())
            if (const NodeId x = quantized_rows(node.op); x != kNoNode) quantized[x] = true;
        if (fuse_) find_transforms();
        for (NodeId i = 0; i < graph_.nodes().size(); ++i)
            if (!quantized[i] || !fuses_with_quantize(i)) add(i);
        GraphOutputs outputs(graph_.outputs().begin(), graph_.outputs().end());
        for (auto& [output, id] : outputs) id = renamed_[id];
        return {std::move(nodes_), std::move(outputs)};
    }

private:
    // Returns the operand of a product that must be quantised, or kNoNode.
    NodeId quantized_rows(const Op& op) const {
        const ProductRows rows = rows_of(graph_, isa_, op);
        return rows.form == RowForm::bytes ? rows.x : kNoNode;
    }

    bool fuses_with_quantize(NodeId id) const {
        if (!fuse_ || other_uses_[id] > 0) return false;
        const Node& node = graph_.node(id);
        // A row is one vector of the norm, unless the norm is of heads.
        return std::holds_alternative<ops::Gate>(node.op) ||
               (std::holds_alternative<ops::RmsNorm>(node.op) && node.type.shape.rank == 2);
    }

    // Finds the Hadamard transforms that the op before them or the store after them can compute.
    void find_transforms() {
        for (NodeId i = 0; i < graph_.nodes().size(); ++i) {
            const Node& node = graph_.node(i);
            if (const auto* transform = std::get_if<ops::Hadamard>(&node.op)) {
                const Op& before = graph_.node(transform->x).op;
                if (other_uses_[transform->x] == 1 && (std::holds_alternative<ops::Rope>(before) ||
                                                       std::holds_alternative<ops::Attend>(before)))
                    transformed_by_[transform->x] = i;
            } else if (const auto* store = std::get_if<ops::StoreRows>(&node.op)) {
                is_stored_[store->x] = other_uses_[store->x] == 1;
            }
        }
    }

    // Returns the Hadamard transform of node `id` that is computed together with it, or null.
    const ops::Hadamard* transform_of(NodeId id) const {
        if (transformed_by_[id] == kNoNode) return nullptr;
        return &std::get<ops::Hadamard>(graph_.node(transformed_by_[id]).op);
    }

    // Returns the Hadamard transform that a store computes, given its operand, or null.
    const ops::Hadamard* stored_transform(NodeId x) const {
        const auto* transform = std::get_if<ops::Hadamard>(&graph_.node(x).op);
        const bool fuses =
            transform != nullptr && is_stored_[x] && transformed_by_[transform->x] != x;
        return fuses ? transform : nullptr;
    }

    NodeId append(CpuNode node) {
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
    }

    void add(NodeId id) {
        const Node& node = graph_.node(id);
        if (const auto* transform = std::get_if<ops::Hadamard>(&node.op))
            if (transform_of(transform->x) == transform || stored_transform(id) != nullptr) {
                renamed_[id] = renamed_[transform->x];
                return;
            }
        const ProductRows rows = rows_of(graph_, isa_, node.op);
        const NodeId converted = rows.x == kNoNode ? kNoNode : converted_rows(rows);
        Op op = node.op;
        map_operands(op, [&](NodeId operand) { return renamed_[operand]; });
        if (rows.x != kNoNode)
            std::visit(
                [&]<typename T>(T& product) {
                    if constexpr (is_product<T>) product.x = Operand(converted);
                },
                op);
        CpuNode lowered{.op = std::visit([](const auto& each) -> CpuOp { return each; }, op),
                        .type = node.type,
                        .extent = node.extent,
                        .role = node.role,
                        .layer = node.layer};
        if (const auto* attend = std::get_if<ops::Attend>(&op); attend && may_split_keys(*attend))
            lowered.op = AttendMerge{*attend, Operand(append(splits_of(*attend)))};
        add_transform(id, lowered);
        renamed_[id] = append(std::move(lowered));
    }

    // Makes a node also compute the Hadamard transform before or after it, if it can.
    void add_transform(NodeId id, CpuNode& lowered) const {
        if (const auto* store = std::get_if<ops::StoreRows>(&graph_.node(id).op))
            if (const ops::Hadamard* transform = stored_transform(store->x)) {
                const auto& op = std::get<ops::StoreRows>(lowered.op);
                lowered.op = StoreHadamard{op.storage, op.x, op.rows, transform->block};
            }
        const ops::Hadamard* transform = transform_of(id);
        if (transform == nullptr) return;
        if (const auto* rope = std::get_if<ops::Rope>(&lowered.op))
            lowered.op = RopeHadamard{*rope, transform->block};
        else if (const auto* attend = std::get_if<ops::Attend>(&lowered.op))
            lowered.op = AttendHadamard{*attend, {}, transform->block};
        else if (const auto* merge = std::get_if<AttendMerge>(&lowered.op))
            lowered.op =
                AttendHadamard{merge->attend, OptionalOperand(merge->splits.id), transform->block};
        const Node& last = graph_.node(transformed_by_[id]);
        if (last.role == Role::none) return;
        lowered.role = last.role;
        lowered.layer = last.layer;
    }

    // Returns the node of rows in the form that a product reads; appends it if it does not exist.
    NodeId converted_rows(const ProductRows& rows) {
        const auto [found, added] = converted_.try_emplace(rows);
        if (!added) return found->second;
        const NodeId x = rows.x;
        const Node& source = graph_.node(x);
        const int64_t columns = source.type.shape[-1];
        CpuNode node{.op = QuantizeRows{Operand(renamed_[x])},
                     .type = {DType::i32, source.type.shape},
                     .extent = source.extent};
        PLAIT_CHECK(rows.form != RowForm::bytes || columns % 32 == 0);
        if (rows.form != RowForm::bytes)
            node.op = RoundRows{Operand(renamed_[x]), parts_of(rows.form)};
        node.type.shape.dims[static_cast<size_t>(source.type.shape.rank - 1)] =
            bytes_of_row(rows.form, columns) / 4;
        if (rows.form == RowForm::bytes && fuses_with_quantize(x)) {
            node.role = source.role;
            node.layer = source.layer;
            if (const auto* gate = std::get_if<ops::Gate>(&source.op))
                node.op = GateQuantize{Operand(renamed_[gate->g]), Operand(renamed_[gate->up]),
                                       gate->activation};
            if (const auto* norm = std::get_if<ops::RmsNorm>(&source.op))
                node.op =
                    NormQuantize{Operand(renamed_[norm->x]), renamed(norm->weight), norm->epsilon};
        }
        return found->second = append(std::move(node));
    }

    OptionalOperand renamed(OptionalOperand operand) const {
        return operand ? OptionalOperand(renamed_[*operand]) : operand;
    }

    bool may_split_keys(const ops::Attend& op) const {
        const CpuNode& keys = nodes_[op.keys];
        return threads_ > 1 && op.params.flash && keys.extent == Extent::fixed &&
               keys.type.shape[0] > kKeySplit;
    }

    // Returns a node with space for the splits of two tokens that attend to all rows. With more
    // tokens there are enough tiles.
    CpuNode splits_of(const ops::Attend& op) const {
        const int64_t rows = nodes_[op.keys].type.shape[0];
        const int64_t floats = split_floats(op.params.n_heads, op.params.value_dim);
        return {.op = AttendSplits{op}, .type = {DType::f32, {2 * rows / kKeySplit * floats}}};
    }

    const Graph& graph_;
    const IsaInfo& isa_;
    int threads_;
    bool fuse_;
    std::vector<int> other_uses_;  // by node: how often it is read, except as rows to be quantised
    std::vector<NodeId> transformed_by_;  // by node: the transform computed with it, or kNoNode
    std::vector<bool> is_stored_;         // by node: only a store reads it
    std::vector<NodeId> renamed_;         // by node of the graph; kNoNode if it was fused
    std::map<ProductRows, NodeId> converted_;
    std::vector<CpuNode> nodes_;
};

}  // namespace

Lowered lower(Graph graph, Isa isa, int threads, bool fuse) {
    if (fuse) fuse_linear_add(graph);
    return Lowering(graph, isa, threads, fuse).run();
}

}  // namespace plait::cpu
