#include "plan/buffers.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace plait {
namespace {

constexpr uint64_t kAlignment = 128;

// A stretch of the arena that a live value holds.
struct Block {
    uint64_t offset, bytes;
    uint32_t last_stage;
};

// Nodes whose result is the bytes of their first input.
bool is_alias(const Op& op) {
    return std::holds_alternative<ReshapeOp>(op) || std::holds_alternative<StoreRowsOp>(op) ||
           std::holds_alternative<CopyRowsOp>(op) || std::holds_alternative<RotateRowsOp>(op) ||
           std::holds_alternative<WeightRowOp>(op);
}

// The first gap among live blocks (sorted by offset) that holds `bytes`.
uint64_t find_gap(const std::vector<Block>& live, uint64_t bytes) {
    uint64_t offset = 0;
    for (const Block& block : live) {
        if (block.offset >= offset + bytes) break;
        offset = std::max(offset, block.offset + block.bytes);
    }
    return offset;
}

// For every node, the last node that reads its bytes, through aliases.
std::vector<NodeId> last_uses(const Graph& graph, const std::vector<NodeId>& root) {
    std::vector<NodeId> last(graph.nodes().size());
    for (NodeId i = 0; i < last.size(); ++i) {
        last[i] = i;
        for (const NodeId input : graph.node(i).inputs) last[root[input]] = i;
    }
    return last;
}

}  // namespace

Buffers place_values(const Graph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<NodeId> root(nodes.size());
    for (NodeId i = 0; i < nodes.size(); ++i)
        root[i] = is_alias(nodes[i].op) ? root[nodes[i].inputs[0]] : i;
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
    std::vector<Block> live;
    for (NodeId i = 0; i < nodes.size(); ++i) {
        std::erase_if(live, [&](const Block& block) { return block.last_stage < stages[i]; });
        Place& place = buffers.places[i];
        if (root[i] != i) {
            place = buffers.places[root[i]];
        } else if (const auto* weight = std::get_if<WeightOp>(&nodes[i].op)) {
            place = {.space = Space::weight, .id = weight->id};
        } else if (const auto* storage = std::get_if<StorageOp>(&nodes[i].op)) {
            place = {.space = Space::storage, .id = storage->index};
        } else if (const auto* input = std::get_if<InputOp>(&nodes[i].op)) {
            place = {.space = Space::input, .offset = inputs.offset(input->id)};
        } else if (place.space != Space::output) {
            const uint64_t bytes =
                align_up(std::max<uint64_t>(nodes[i].type.bytes(), 1), kAlignment);
            const uint64_t offset = find_gap(live, bytes);
            place = {.space = Space::arena, .offset = offset};
            const Block block{offset, bytes, stages[last[i]]};
            live.insert(std::upper_bound(
                            live.begin(), live.end(), block,
                            [](const Block& a, const Block& b) { return a.offset < b.offset; }),
                        block);
            buffers.arena_bytes = std::max(buffers.arena_bytes, offset + bytes);
        }
    }
    return buffers;
}

}  // namespace plait
