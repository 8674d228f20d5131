#include "plan/compile.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "graph/cut.h"
#include "plan/passes.h"

namespace plait {
namespace {

constexpr uint64_t kExchangeAlignment = 128;

bool has_kernels(const LoweredGraph& graph, std::span<const NodeId> nodes) {
    return std::ranges::any_of(
        nodes, [&](NodeId id) { return graph.node(id).info->kind == OpKind::kernel; });
}

}  // namespace

uint64_t estimate_arena_bytes(Graph graph, Backend& backend, const InputLayout& inputs, bool fuse) {
    prune(graph);
    select_early(graph);
    const std::unique_ptr<LoweredGraph> lowered = backend.lower(std::move(graph), fuse);
    return place_values(*lowered, find_stages(*lowered), inputs).arena_bytes;
}

void PlanCompiler::compile(Graph graph) {
    prune(graph);
    select_early(graph);
    lower(std::move(graph));

    std::vector<const LoweredGraph*> graphs;
    for (const Plan::Part& part : plan_.parts_) graphs.push_back(part.graph.get());
    order_ = schedule(graphs);
    if (graphs.size() > 1) {
        find_channels();
        place_exchanged();
    }
    exchanged_.resize(graphs.size(), {{}, FirstFit(1), FirstFit(1)});
    memory_.resize(graphs.size());
    for (size_t part = 0; part < graphs.size(); ++part) place_part(part);
    for (const SegmentRange& range : order_) compile_segment(range);
    for (Plan::Part& part : plan_.parts_) {
        uint64_t scratch_bytes = 0;
        for (const Plan::Step& step : plan_.steps_)
            if (step.device == part.device && step.executable)
                scratch_bytes = std::max(scratch_bytes, step.executable->scratch_bytes());
        part.arena_bytes += scratch_bytes;
    }
    list_captured();
}

// Cuts the graph by device and lowers each part.
void PlanCompiler::lower(Graph graph) {
    for (const Node& node : graph.nodes())
        if (const auto* input = std::get_if<ops::Input>(&node.op))
            plan_.inputs_.push_back(input->id);
    DeviceSet& devices = target_.devices;
    std::vector<Graph> graphs;
    if (devices.size() == 1)
        graphs.push_back(std::move(graph));
    else
        graphs =
            cut(graph, assign_devices(graph, devices, target_.storage_devices), devices.size());
    NodeId first_node = 0;
    for (size_t d = 0; d < graphs.size(); ++d) {
        if (graphs[d].nodes().empty() && devices.size() > 1) continue;
        Plan::Part& part = plan_.parts_.emplace_back();
        part.device = static_cast<uint8_t>(d);
        part.first_node = first_node;
        part.graph = devices[d].lower(std::move(graphs[d]), target_.fuse);
        part.stages = find_stages(*part.graph);
        first_node += static_cast<NodeId>(part.graph->nodes().size());
    }
}

void PlanCompiler::find_channels() {
    const size_t n = plan_.parts_.size();
    times_.resize(n);
    last_use_.resize(n);
    for (size_t part = 0; part < n; ++part) times_[part].resize(graph(part).nodes().size());
    for (uint32_t t = 0; t < order_.size(); ++t)
        for (NodeId i = order_[t].begin; i < order_[t].end; ++i) times_[order_[t].part][i] = t;
    for (size_t part = 0; part < n; ++part) {
        for (const NodeId last : last_uses(graph(part)))
            last_use_[part].push_back(times_[part][last]);
        for (const auto& [id, node] : graph(part).outputs())
            if (id >= OutputId::first_captured)
                last_use_[part][graph(part).root(node)] = static_cast<uint32_t>(order_.size());
        for (NodeId i = 0; i < graph(part).nodes().size(); ++i) {
            const auto& reference = graph(part).node(i).reference;
            const auto at = [&](uint32_t channel) -> Channel& {
                if (channels_.size() <= channel) channels_.resize(channel + 1);
                return channels_[channel];
            };
            if (const auto* send = std::get_if<ops::Send>(&reference)) {
                Channel& channel = at(send->channel);
                channel.from = part;
                channel.value = graph(part).root(i);
                channel.sent_at = time_of(part, channel.value);
            } else if (const auto* receive = std::get_if<ops::Receive>(&reference)) {
                Channel& channel = at(receive->channel);
                channel.to = part;
                channel.receiver = i;
                channel.received_at = time_of(part, i);
            }
        }
    }
}

bool PlanCompiler::is_output(size_t part, NodeId root) const {
    return std::ranges::any_of(graph(part).outputs(), [&](const auto& output) {
        return output.first < OutputId::first_captured && graph(part).root(output.second) == root;
    });
}

// Assigns places in the exchange memory to the values that parts send and receive.
void PlanCompiler::place_exchanged() {
    const size_t n = plan_.parts_.size();
    for (size_t part = 0; part < n; ++part)
        exchanged_.push_back({std::vector<Place>(graph(part).nodes().size()),
                              FirstFit(kExchangeAlignment), FirstFit(kExchangeAlignment)});
    // Sorted by the time at which they are computed, as FirstFit requires.
    std::vector<const Channel*> by_time;
    for (const Channel& channel : channels_) by_time.push_back(&channel);
    std::ranges::stable_sort(by_time, {}, &Channel::sent_at);
    for (const Channel* channel : by_time) {
        Place& place = exchanged_[channel->from].places[channel->value];
        if (place.space != Space::nowhere || is_output(channel->from, channel->value)) continue;
        uint32_t last = std::max(channel->sent_at, last_use(channel->from, channel->value));
        for (const Channel& other : channels_)
            if (other.from == channel->from && other.value == channel->value)
                last = std::max(last, other.received_at);
        const uint64_t bytes = graph(channel->from).node(channel->value).type.bytes();
        place = {.space = Space::sent,
                 .offset = exchanged_[channel->from].sent.take(bytes, channel->sent_at, last)};
    }
    std::ranges::stable_sort(by_time, {}, &Channel::received_at);
    for (const Channel* channel : by_time) {
        const uint64_t bytes = graph(channel->to).node(channel->receiver).type.bytes();
        exchanged_[channel->to].places[channel->receiver] = {
            .space = Space::received,
            .offset = exchanged_[channel->to].received.take(
                bytes, channel->received_at, last_use(channel->to, channel->receiver))};
    }
    for (size_t part = 0; part < n; ++part) {
        memory_.push_back(target_.devices.exchange(plan_.parts_[part].device,
                                                   exchanged_[part].sent.bytes(),
                                                   exchanged_[part].received.bytes()));
        plan_.exchanged_.insert(plan_.exchanged_.end(),
                                {memory_.back().sent, memory_.back().received});
    }
}

void PlanCompiler::place_part(size_t part) {
    Plan::Part& placed = plan_.parts_[part];
    buffers_.push_back(
        place_values(*placed.graph, placed.stages, target_.inputs, exchanged_[part].places));
    placed.arena_bytes = buffers_.back().arena_bytes;
    node_ids_.emplace_back(placed.graph->nodes().size());
    std::iota(node_ids_.back().begin(), node_ids_.back().end(), NodeId{0});
    std::vector<Buffer*>& storage = storage_.emplace_back();
    for (size_t i = 0; i < target_.storage.size(); ++i)
        storage.push_back(target_.storage_devices[i] == placed.device ? target_.storage[i]
                                                                      : nullptr);
}

void PlanCompiler::compile_segment(const SegmentRange& range) {
    const Plan::Part& part = plan_.parts_[range.part];
    Plan::Step& step = plan_.steps_.emplace_back();
    step.device = part.device;
    step.before = host_work(range);
    const auto nodes =
        std::span(node_ids_[range.part]).subspan(range.begin, range.end - range.begin);
    if (!has_kernels(*part.graph, nodes)) return;
    step.executable = part.graph->compile({.nodes = nodes,
                                           .stages = part.stages,
                                           .places = buffers_[range.part].places,
                                           .weights = DeviceWeights(target_.weights, part.device),
                                           .storage = storage_[range.part],
                                           .sent = memory_[range.part].sent.get(),
                                           .received = memory_[range.part].received.get(),
                                           .scratch_offset = part.arena_bytes,
                                           .first_node = part.first_node});
}

Plan::HostPlace PlanCompiler::host_place(size_t part, NodeId node) const {
    const Place& place = buffers_[part].places[node];
    if (place.space == Space::sent) return {memory_[part].sent->host() + place.offset, place};
    if (place.space == Space::received)
        return {memory_[part].received->host() + place.offset, place};
    return {nullptr, place};
}

std::vector<std::variant<Plan::Edit, Plan::Copy>> PlanCompiler::host_work(
    const SegmentRange& range) const {
    std::vector<std::variant<Plan::Edit, Plan::Copy>> work;
    for (NodeId i = range.begin; i < range.end; ++i) {
        const LoweredNode& node = graph(range.part).node(i);
        if (const auto* edit = std::get_if<ops::Edit>(&node.reference)) {
            work.emplace_back(Plan::Edit{edit->index, host_place(range.part, edit->x),
                                         host_place(range.part, i), node.extent, node.type});
        } else if (const auto* receive = std::get_if<ops::Receive>(&node.reference)) {
            const Channel& channel = channels_[receive->channel];
            const int64_t rows = node.extent == Extent::fixed ? 1 : node.type.shape[0];
            work.emplace_back(Plan::Copy{host_place(channel.from, channel.value),
                                         host_place(range.part, i), node.extent,
                                         node.type.bytes() / static_cast<uint64_t>(rows)});
        }
    }
    return work;
}

void PlanCompiler::list_captured() {
    for (size_t part = 0; part < plan_.parts_.size(); ++part) {
        for (const auto& [id, node] : graph(part).outputs()) {
            if (id < OutputId::first_captured) continue;
            const auto index =
                static_cast<size_t>(id) - static_cast<size_t>(OutputId::first_captured);
            const LoweredNode& value = graph(part).node(node);
            const Plan::HostPlace place = host_place(part, node);
            plan_.captured_.push_back({static_cast<uint16_t>(index), plan_.parts_[part].device,
                                       place.address, place.place, value.extent, value.type});
        }
    }
}

}  // namespace plait
