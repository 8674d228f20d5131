#include "plan/plan.h"

#include <numeric>

#include "plan/buffers.h"
#include "plan/prune.h"
#include "plan/select_early.h"
#include "plan/stages.h"

namespace plait {

Plan::Plan(Graph graph, Backend& backend, const InputLayout& inputs, WeightStore& weights,
           std::span<Buffer* const> storage, bool fuse)
    : graph_(std::move(graph)) {
    prune(graph_);
    select_early(graph_);
    backend.lower(graph_, fuse);
    for (const Node& node : graph_.nodes())
        if (const auto* input = std::get_if<InputOp>(&node.op)) inputs_.push_back(input->id);

    stages_ = find_stages(graph_);
    const Buffers buffers = place_values(graph_, stages_, inputs);
    std::vector<NodeId> nodes(graph_.nodes().size());
    std::iota(nodes.begin(), nodes.end(), NodeId{0});
    const Segment segment{
        graph_, nodes, stages_, buffers.places, weights, storage, buffers.arena_bytes};
    executable_ = backend.compile(segment);
    for (const auto& [id, node] : graph_.outputs()) {
        if (id < OutputId::first_captured) continue;
        const auto index = static_cast<size_t>(id) - static_cast<size_t>(OutputId::first_captured);
        captured_.push_back({static_cast<uint16_t>(index), buffers.places[node],
                             graph_.node(node).extent, graph_.node(node).type});
    }
    arena_bytes_ = buffers.arena_bytes + executable_->scratch_bytes();
}

uint64_t Plan::bytes() const {
    // A node and its bound step; what they own beyond that is small.
    constexpr uint64_t kNodeBytes = 640;
    return graph_.nodes().size() * kNodeBytes;
}

}  // namespace plait
