#include "plan/plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/buffers.h"
#include "plan/prune.h"
#include "plan/select_early.h"
#include "plan/stages.h"

namespace plait {

Plan::Plan(Graph graph, Backend& backend, const InputLayout& inputs, const WeightStores& weights,
           std::span<Buffer* const> storage, bool fuse)
    : graph_(std::move(graph)) {
    prune(graph_);
    select_early(graph_);
    backend.lower(graph_, {storage, fuse});
    for (const Node& node : graph_.nodes()) {
        ++n_nodes_[node.device];
        if (const auto* input = std::get_if<ops::Input>(&node.op)) inputs_.push_back(input->id);
    }

    stages_ = find_stages(graph_);
    const Buffers buffers = place_values(graph_, stages_, inputs);
    std::vector<NodeId> nodes(graph_.nodes().size());
    std::iota(nodes.begin(), nodes.end(), NodeId{0});
    compile(backend,
            {graph_, nodes, stages_, buffers.places, weights, storage, buffers.arena_bytes});
    for (const auto& [id, node] : graph_.outputs()) {
        if (id < OutputId::first_captured) continue;
        const auto index = static_cast<size_t>(id) - static_cast<size_t>(OutputId::first_captured);
        captured_.push_back({static_cast<uint16_t>(index), buffers.places[node],
                             graph_.node(node).extent, graph_.node(node).type});
    }
    uint64_t scratch_bytes = 0;
    for (const auto& part : parts_) scratch_bytes = std::max(scratch_bytes, part->scratch_bytes());
    arena_bytes_ = buffers.arena_bytes + scratch_bytes;
}

void Plan::compile(Backend& backend, const Segment& whole) {
    Segment part = whole;
    size_t begin = 0;
    for (size_t i = 0; i < whole.nodes.size(); ++i) {
        const Node& node = graph_.node(whole.nodes[i]);
        const auto* edit = std::get_if<ops::Edit>(&node.op);
        if (edit == nullptr) continue;
        part.nodes = whole.nodes.subspan(begin, i - begin);
        parts_.push_back(backend.compile(part));
        edits_.push_back({edit->index, whole.places[edit->x], whole.places[whole.nodes[i]],
                          node.extent, node.type});
        begin = i + 1;
    }
    part.nodes = whole.nodes.subspan(begin);
    parts_.push_back(backend.compile(part));
}

void Plan::run_edit(const Edit& edit, const RunArguments& arguments) {
    PLAIT_CHECK(arguments.editor != nullptr);
    Shape shape = edit.type.shape;
    shape.dims[0] =
        edit.extent == Extent::tokens ? arguments.counts.tokens : arguments.counts.outputs;
    std::vector<float> rows(static_cast<size_t>(shape.elements()));
    if (rows.empty()) return;
    PLAIT_CHECK(edit.from.space == Space::arena && edit.to.space == Space::arena);
    arguments.arena->read(edit.from.offset, std::as_writable_bytes(std::span(rows)));
    arguments.editor->edit(edit.index, rows, shape, edit.extent);
    arguments.arena->write(edit.to.offset, std::as_bytes(std::span(rows)));
}

uint64_t Plan::bytes() const {
    // A node and its bound step; what they own beyond that is small.
    constexpr uint64_t kNodeBytes = 640;
    return graph_.nodes().size() * kNodeBytes;
}

}  // namespace plait
