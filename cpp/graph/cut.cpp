#include "graph/cut.h"

#include <map>

#include "base/error.h"
#include "graph/analysis.h"

namespace plait {
namespace {

class Cutter {
public:
    Cutter(const Graph& graph, std::span<const uint8_t> part_of, size_t n_parts)
        : graph_(graph),
          part_of_(part_of),
          roots_(alias_roots(graph)),
          parts_(n_parts),
          local_(n_parts, std::vector<NodeId>(graph.nodes().size(), kNoNode)),
          readers_(graph.nodes().size()) {
        for (NodeId i = 0; i < roots_.size(); ++i) {
            if (!is_made(i)) continue;
            for_each_operand(graph.node(i).op,
                             [&](NodeId id) { readers_[roots_[id]] |= uint64_t{1} << part_of[i]; });
        }
    }

    std::vector<Graph> run() {
        for (NodeId i = 0; i < roots_.size(); ++i) {
            if (!is_made(i)) continue;
            place(part_of_[i], i);
            send(i);
        }
        for (const auto& [id, node] : graph_.outputs()) {
            const NodeId root = roots_[node];
            const uint8_t part = is_made(root) ? part_of_[root] : uint8_t{0};
            Graph& to = parts_[part];
            to.output(id, {&to, local(part, node)});
        }
        return std::move(parts_);
    }

private:
    bool is_made(NodeId id) const {
        const OpKind kind = info_of(graph_.node(id).op).kind;
        return kind == OpKind::kernel || kind == OpKind::host;
    }

    // Appends a copy of the node to a part.
    NodeId place(uint8_t part, NodeId id) {
        const Node& node = graph_.node(id);
        Op op = node.op;
        map_operands(op, [&](NodeId operand) { return local(part, operand); });
        const Value value = append(part, id, op);
        parts_[part].name(value, node.role, node.layer);
        return value.id;
    }

    Value append(uint8_t part, NodeId id, const Op& op) {
        const Node& node = graph_.node(id);
        const Value value = parts_[part].add(op, node.type, node.extent);
        local_[part][id] = value.id;
        return value;
    }

    // Returns the node of a part that holds the value of node `id`.
    NodeId local(uint8_t part, NodeId id) {
        if (const NodeId known = local_[part][id]; known != kNoNode) return known;
        if (!is_made(id)) return place(part, id);
        PLAIT_CHECK(part_of_[id] != part && roots_[id] == id);
        return append(part, id, ops::Receive{channels_.at({id, part})}).id;
    }

    // Appends one Send of the value for each other part that reads it.
    void send(NodeId id) {
        if (roots_[id] != id) return;
        const uint8_t from = part_of_[id];
        const Node& node = graph_.node(id);
        for (uint8_t to = 0; to < parts_.size(); ++to) {
            if (to == from || (readers_[id] >> to & 1) == 0) continue;
            const auto channel = static_cast<uint32_t>(channels_.size());
            channels_.emplace(std::pair(id, to), channel);
            Graph& part = parts_[from];
            part.add(ops::Send{Operand(local_[from][id]), channel}, node.type, node.extent);
        }
    }

    const Graph& graph_;
    std::span<const uint8_t> part_of_;
    std::vector<NodeId> roots_;
    std::vector<Graph> parts_;
    std::vector<std::vector<NodeId>> local_;  // by part, by node of the whole graph
    std::vector<uint64_t> readers_;           // by node: bit p if part p reads it
    std::map<std::pair<NodeId, uint8_t>, uint32_t> channels_;  // by value and receiver
};

}  // namespace

std::vector<Graph> cut(const Graph& graph, std::span<const uint8_t> part_of, size_t n_parts) {
    PLAIT_CHECK(part_of.size() == graph.nodes().size() && n_parts <= 64);
    return Cutter(graph, part_of, n_parts).run();
}

}  // namespace plait
