#include "gradient/gradient.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "gradient/derivatives/derivatives.h"
#include "gradient/walk.h"

namespace plait {
namespace {

using gradient::Derivative;
using gradient::Differentiable;
using gradient::Refusing;
using gradient::Walk;

// Returns why gradients cannot flow through the node, or an empty text.
std::string refusal(const Graph& graph, NodeId id) {
    return std::visit(
        [&]<typename T>(const T& op) -> std::string {
            if constexpr (!Differentiable<T>) {
                return text('"', T::kInfo.name, '"');
            } else if constexpr (Refusing<T>) {
                const char* form = Derivative<T>::refusal(op, graph);
                return form ? text('"', T::kInfo.name, "\" ", form) : "";
            }
            return "";
        },
        graph.node(id).op);
}

// Adds the computed values that the derivative of the node reads.
void add_kept(const Graph& graph, NodeId id, std::set<NodeId>& kept) {
    const auto keep = [&](const NodeId& operand) {
        const NodeId root = gradient::without_reshapes(graph, operand);
        const OpKind kind = info_of(graph.node(root).op).kind;
        if (kind == OpKind::kernel || kind == OpKind::host) kept.insert(root);
    };
    std::visit(
        [&]<typename T>(const T& op) {
            if constexpr (Differentiable<T>)
                std::apply([&](auto... members) { (visit_operands(op.*members, keep), ...); },
                           Derivative<T>::kReads);
        },
        graph.node(id).op);
}

std::string name_of(const Node& node) {
    return node.role == Role::none ? "" : text(" (", full_name(node.role, node.layer), ")");
}

}  // namespace

GradientPlan make_gradient_plan(const Graph& graph, NodeId result, std::span<const NodeId> wanted,
                                std::string_view architecture) {
    const size_t n = graph.nodes().size();
    std::vector<bool> depends(n), is_wanted(n);
    for (const NodeId id : wanted) is_wanted[id] = true;
    for (NodeId i = 0; i < n; ++i) {
        depends[i] = is_wanted[i];
        for_each_operand(graph.node(i).op, [&](NodeId id) {
            if (depends[id]) depends[i] = true;
        });
    }
    GradientPlan plan{.result = result, .wanted = {wanted.begin(), wanted.end()}};
    plan.flows.resize(n);
    plan.flows[result] = depends[result];
    std::set<NodeId> kept;
    for (NodeId i = static_cast<NodeId>(n); i-- > 0;) {
        if (!plan.flows[i]) continue;
        bool passes_on = false;
        for_each_operand(graph.node(i).op, [&](NodeId id) {
            if (!depends[id]) return;
            plan.flows[id] = true;
            passes_on = true;
        });
        if (!passes_on) continue;
        const std::string op = refusal(graph, i);
        if (!op.empty())
            throw UnsupportedError(
                text("gradients: the operation ", op, name_of(graph.node(i)), " of architecture ",
                     architecture, " has no derivative; choose values that are computed after it"));
        add_kept(graph, i, kept);
    }
    plan.kept.assign(kept.begin(), kept.end());
    return plan;
}

std::vector<std::vector<float>> run_gradient(const Graph& graph, const GradientPlan& plan,
                                             const ForwardStep& step,
                                             std::vector<float> of_result) {
    Walk walk(graph, plan, step);
    std::vector<std::vector<float>> results(plan.wanted.size());
    if (plan.flows[plan.result]) {
        const std::span<float> first = walk.gradient(plan.result);
        PLAIT_CHECK(first.size() == of_result.size());
        std::ranges::copy(of_result, first.begin());
    }
    for (NodeId i = static_cast<NodeId>(graph.nodes().size()); i-- > 0;) {
        if (!plan.flows[i]) continue;
        step.check_stop();
        const std::vector<float> dy = walk.take(i);
        for (size_t w = 0; w < plan.wanted.size(); ++w)
            if (plan.wanted[w] == i) results[w] = dy;
        bool passes_on = false;
        for_each_operand(graph.node(i).op, [&](NodeId id) { passes_on |= plan.flows[id]; });
        if (dy.empty() || !passes_on) continue;
        std::visit(
            [&]<typename T>(const T& op) {
                if constexpr (Differentiable<T>) Derivative<T>::backward(op, i, dy, walk);
            },
            graph.node(i).op);
    }
    for (size_t w = 0; w < plan.wanted.size(); ++w)
        if (results[w].empty()) results[w].resize(walk.elements(plan.wanted[w]));
    return results;
}

}  // namespace plait
