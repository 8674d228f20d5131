#include "plan/buffers.h"

#include "base/error.h"
#include "base/first_fit.h"
#include "graph/alias_roots.h"

namespace plait {
namespace {

constexpr uint64_t kAlignment = 128;

// For every node, the last node that reads its bytes, through aliases.
std::vector<NodeId> last_uses(const Graph& graph, const std::vector<NodeId>& root) {
    std::vector<NodeId> last(graph.nodes().size());
    for (NodeId i = 0; i < last.size(); ++i) {
        last[i] = i;
        for_each_operand(graph.node(i).op, [&](NodeId id) { last[root[id]] = i; });
    }
    return last;
}

}  // namespace

Buffers place_values(const Graph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs) {
    const std::span<const Node> nodes = graph.nodes();
    const std::vector<NodeId> root = alias_roots(graph);
    std::vector<NodeId> last = last_uses(graph, root);

    Buffers buffers;
    buffers.places.resize(nodes.size());
    for (const auto& [id, node] : graph.outputs()) {
        if (id >= OutputId::first_captured) {  // read when the run has ended
            last[root[node]] = static_cast<NodeId>(nodes.size() - 1);
            continue;
        }
        PLAIT_CHECK(nodes[root[node]].extent != Extent::fixed);
        buffers.places[root[node]] = {.space = Space::output, .index = static_cast<uint8_t>(id)};
    }
    FirstFit arena(kAlignment);
    for (NodeId i = 0; i < nodes.size(); ++i) {
        Place& place = buffers.places[i];
        if (root[i] != i) {
            place = buffers.places[root[i]];
        } else if (const auto* weight = std::get_if<ops::Weight>(&nodes[i].op)) {
            place = {.space = Space::weight, .id = weight->id};
        } else if (const auto* storage = std::get_if<ops::Storage>(&nodes[i].op)) {
            place = {.space = Space::storage, .id = storage->index};
        } else if (const auto* input = std::get_if<ops::Input>(&nodes[i].op)) {
            place = {.space = Space::input, .offset = inputs.offset(input->id)};
        } else if (place.space != Space::output) {
            place = {.space = Space::arena,
                     .offset = arena.take(nodes[i].type.bytes(), stages[i], stages[last[i]])};
        }
    }
    buffers.arena_bytes = arena.bytes();
    return buffers;
}

}  // namespace plait
