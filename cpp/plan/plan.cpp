#include "plan/plan.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "plan/compile.h"

namespace plait {
namespace {

uint64_t rows_of(Extent extent, const Counts& counts) {
    switch (extent) {
    case Extent::fixed: return 1;
    case Extent::tokens: return static_cast<uint64_t>(counts.tokens);
    case Extent::outputs: return static_cast<uint64_t>(counts.outputs);
    case Extent::moves: return static_cast<uint64_t>(counts.moves);
    }
    return 0;
}

}  // namespace

Plan::Plan(Graph graph, const PlanTarget& target) : devices_(target.devices) {
    PlanCompiler(*this, target).compile(std::move(graph));
}

void Plan::run(const PlanArguments& arguments) {
    devices_.check_caches();
    // The memory of the context has recorded moves before they are made.
    if (arguments.counts.moves > 0)
        devices_.change_caches([&] { run_steps(arguments); });
    else
        run_steps(arguments);
}

void Plan::run_steps(const PlanArguments& arguments) {
    RunArguments run{.outputs = {arguments.outputs[0], arguments.outputs[1]},
                     .counts = arguments.counts,
                     .stop = arguments.stop,
                     .trace = arguments.trace};
    for (const Step& step : steps_) {
        for (const auto& before : step.before)
            std::visit([&](const auto& each) { run_before(each, step.device, arguments); }, before);
        if (!step.executable) continue;
        run.arena = &arguments.arenas.on(step.device);
        run.inputs = &arguments.inputs.on(step.device);
        step.executable->run(run);
    }
}

void Plan::run_before(const Edit& edit, uint8_t device, const PlanArguments& arguments) {
    PLAIT_CHECK(arguments.editor != nullptr);
    Shape shape = edit.type.shape;
    shape.dims[0] = static_cast<int64_t>(rows_of(edit.extent, arguments.counts));
    std::vector<float> rows(static_cast<size_t>(shape.elements()));
    if (rows.empty()) return;
    const auto bytes = std::as_writable_bytes(std::span(rows));
    Buffer& arena = arguments.arenas.on(device);
    if (edit.from.address != nullptr) {
        std::memcpy(bytes.data(), edit.from.address, bytes.size());
    } else {
        PLAIT_CHECK(edit.from.place.space == Space::arena);
        arena.read(edit.from.place.offset, bytes);
    }
    arguments.editor->edit(edit.index, rows, shape, edit.extent);
    if (edit.to.address != nullptr) {
        std::memcpy(edit.to.address, bytes.data(), bytes.size());
    } else {
        PLAIT_CHECK(edit.to.place.space == Space::arena);
        arena.write(edit.to.place.offset, bytes);
    }
}

void Plan::run_before(const Copy& copy, uint8_t, const PlanArguments& arguments) {
    const uint64_t bytes = copy.row_bytes * rows_of(copy.extent, arguments.counts);
    if (bytes == 0) return;
    const std::byte* from = copy.from.address;
    if (from == nullptr) {
        PLAIT_CHECK(copy.from.place.space == Space::output);
        from = arguments.outputs[copy.from.place.index] + copy.from.place.offset;
    }
    std::memcpy(copy.to.address, from, bytes);
}

size_t Plan::n_nodes() const {
    size_t n = 0;
    for (const Part& part : parts_) n += part.graph->nodes().size();
    return n;
}

const LoweredNode& Plan::node(NodeId number) const {
    const auto after = std::ranges::upper_bound(parts_, number, {}, &Part::first_node);
    const Part& part = *std::prev(after);
    return part.graph->node(number - part.first_node);
}

std::vector<uint64_t> Plan::arena_bytes() const {
    std::vector<uint64_t> bytes(devices_.size());
    for (const Part& part : parts_) bytes[part.device] = part.arena_bytes;
    return bytes;
}

uint64_t Plan::bytes() const {
    // A node and its bound kernel call; what these own in addition is small.
    constexpr uint64_t kNodeBytes = 640;
    return n_nodes() * kNodeBytes;
}

}  // namespace plait
