#include "graph/rewrite.h"

#include <algorithm>
#include <optional>

#include "graph/ops.h"

namespace plait {
namespace {

template <typename T>
concept Adaptable = OpType<T> && requires {
    T::kAdaptable;
};

// Returns the operand that an adapter can change, if the op has one.
std::optional<NodeId> adaptable_operand(const Op& op) {
    return std::visit(
        []<typename T>(const T& each) -> std::optional<NodeId> {
            if constexpr (Adaptable<T>) return each.*T::kAdaptable;
            return std::nullopt;
        },
        op);
}

std::optional<WeightId> adaptable_weight(const Graph& graph, const Op& op) {
    const auto operand = adaptable_operand(op);
    if (!operand) return std::nullopt;
    const auto* weight = std::get_if<ops::Weight>(&graph.node(*operand).op);
    return weight ? std::optional(weight->id) : std::nullopt;
}

// The matrices of an adapter in the graph that it is added to.
struct Factors {
    Graph& graph;
    Value a, b, scale;

    // `y`: the value that the adapter is added to.
    Factors(Graph& to, const LowRank& delta, Value y)
        : graph(to), a(to.weight(delta.a)), b(to.weight(delta.b)), scale(scale_of(to, delta, y)) {}
    Value at(NodeId id) const { return {&graph, id}; }

private:
    static Value scale_of(Graph& to, const LowRank& delta, Value y) {
        if (!delta.by_token)
            return to.input({InputField::adapter_scale, delta.scale}, {DType::f32, {1}},
                            Extent::fixed);
        const InputField field = y.extent() == Extent::outputs ? InputField::adapter_output_scale
                                                               : InputField::adapter_token_scale;
        return to.input({field, delta.scale}, {DType::f32, {y.shape()[0], 1}}, y.extent());
    }
};

// Adds the product to y, or to the rows of y whose tokens use the adapter.
Value add_product(Value y, Value product, const LowRank& delta) {
    if (!delta.by_token) return y + product;
    const InputField field = y.extent() == Extent::outputs ? InputField::adapter_output_picks
                                                           : InputField::adapter_token_picks;
    const TensorType type{DType::i32, {y.shape()[0], 2}};
    return edit_rows(y, product, y.graph->input({field, delta.scale}, type, y.extent()));
}

// Builds B (scale * A x), with the same kind of product as the op.
Value product(const ops::Embed& op, const Factors& f) {
    return linear(embed(f.a, f.at(op.tokens)) * f.scale, f.b);
}
Value product(const ops::Linear& op, const Factors& f) {
    return linear(linear(f.at(op.x), f.a) * f.scale, f.b);
}
Value product(const ops::HeadLinear& op, const Factors& f) {
    return head_linear(head_linear(f.at(op.x), f.a) * f.scale, f.b);
}
Value product(const ops::ExpertLinear& op, const Factors& f) {
    const Value routes = f.at(op.routes);
    return expert_linear(expert_linear(f.at(op.x), f.a, routes) * f.scale, f.b, routes);
}

// A tied embedding matrix is used for lookups and for the output product; A [vocab, r] fits only
// the lookup.
bool fits(const Graph&, const ops::Embed&, const LowRank&) { return true; }
template <Adaptable T>
bool fits(const Graph& graph, const T& op, const LowRank& delta) {
    return delta.a.type.shape[-1] == graph.node(op.x).type.shape[-1] &&
           delta.a.type.shape[-2] == delta.b.type.shape[-1];
}

}  // namespace

void add_low_rank(Graph& graph, std::span<const LowRank> deltas) {
    const Graph& before = graph;
    rewrite(graph, [&](NodeId old, Value y) {
        const std::optional<WeightId> weight = adaptable_weight(before, before.node(old).op);
        if (!weight) return y;
        Graph& after = *y.graph;
        const Op op = after.node(y.id).op;  // a copy: adding nodes moves it
        std::visit(
            [&]<typename T>(const T& each) {
                if constexpr (Adaptable<T>) {
                    for (const LowRank& delta : deltas)
                        if (delta.base == *weight && fits(after, each, delta))
                            y = add_product(y, product(each, Factors(after, delta, y)), delta);
                }
            },
            op);
        return y;
    });
}

std::vector<WeightId> adaptable_weights(const Graph& graph) {
    std::vector<WeightId> adaptable, others;
    for (const Node& node : graph.nodes()) {
        const auto operand = adaptable_operand(node.op);
        for_each_operand(node.op, [&](NodeId id) {
            if (const auto* weight = std::get_if<ops::Weight>(&graph.node(id).op))
                (operand == id ? adaptable : others).push_back(weight->id);
        });
    }
    std::erase_if(adaptable,
                  [&](WeightId id) { return std::ranges::find(others, id) != others.end(); });
    return adaptable;
}

}  // namespace plait
