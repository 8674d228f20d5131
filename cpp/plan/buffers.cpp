#include "plan/buffers.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/first_fit.h"

namespace plait {

void InputLayout::add(InputId id, uint64_t bytes) {
    for (const Entry& entry : entries_) PLAIT_CHECK(!(entry.id == id));
    entries_.push_back({id, bytes_, bytes});
    bytes_ = align_up(bytes_ + bytes, 64);
}

bool InputLayout::has(InputId id) const {
    return std::ranges::find(entries_, id, &Entry::id) != entries_.end();
}

const InputLayout::Entry& InputLayout::at(InputId id) const {
    for (const Entry& entry : entries_)
        if (entry.id == id) return entry;
    throw InternalError("a graph reads an input that is not in the layout of its context");
}

uint64_t InputLayout::offset(InputId id) const { return at(id).offset; }
uint64_t InputLayout::capacity(InputId id) const { return at(id).bytes; }

namespace {

constexpr uint64_t kAlignment = 128;

// Places that do not depend on lifetimes; nowhere for values of the arena.
Place fixed_place(const LoweredNode& node, const InputLayout& inputs) {
    if (const auto* weight = std::get_if<ops::Weight>(&node.reference))
        return {.space = Space::weight, .id = weight->id};
    if (const auto* storage = std::get_if<ops::Storage>(&node.reference))
        return {.space = Space::storage, .id = storage->index};
    if (const auto* input = std::get_if<ops::Input>(&node.reference))
        return {.space = Space::input, .offset = inputs.offset(input->id)};
    return {};
}

}  // namespace

std::vector<NodeId> last_uses(const LoweredGraph& graph) {
    std::vector<NodeId> last(graph.nodes().size());
    for (NodeId i = 0; i < last.size(); ++i) {
        last[i] = i;
        for (const NodeId operand : graph.operands(i)) last[graph.root(operand)] = i;
    }
    return last;
}

Buffers place_values(const LoweredGraph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs, std::span<const Place> exchanged) {
    const std::span<const LoweredNode> nodes = graph.nodes();
    std::vector<NodeId> last = last_uses(graph);

    Buffers buffers;
    buffers.places.assign(exchanged.begin(), exchanged.end());
    buffers.places.resize(nodes.size());
    for (const auto& [id, node] : graph.outputs()) {
        const NodeId root = graph.root(node);
        if (id >= OutputId::first_captured) {  // read after the run
            last[root] = static_cast<NodeId>(nodes.size() - 1);
            continue;
        }
        PLAIT_CHECK(nodes[root].extent != Extent::fixed);
        buffers.places[root] = {.space = Space::output, .index = static_cast<uint8_t>(id)};
    }
    FirstFit arena(kAlignment);
    for (NodeId i = 0; i < nodes.size(); ++i) {
        Place& place = buffers.places[i];
        if (graph.root(i) != i) {
            place = buffers.places[graph.root(i)];
            continue;
        }
        if (place.space != Space::nowhere) continue;
        place = fixed_place(nodes[i], inputs);
        if (place.space == Space::nowhere)
            place = {.space = Space::arena,
                     .offset = arena.take(nodes[i].type.bytes(), stages[i], stages[last[i]])};
    }
    buffers.arena_bytes = arena.bytes();
    return buffers;
}

}  // namespace plait
