#include "runtime/devices/place_layers.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "backend/bind_nodes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "graph/analysis.h"
#include "plan/passes.h"
#include "plan/plan.h"

namespace plait {
namespace {

// Returns the depth of a layer of the memory. The layers of an encoder follow those of the decoder,
// and their depth starts at 0 again.
size_t depth_of(const ModelInfo& info, size_t layer) {
    const auto n_decoder = static_cast<size_t>(info.n_all_layers());
    return info.has_encoder && layer >= n_decoder ? layer - n_decoder : layer;
}

// Bytes of weights and caches by depth; the output layer comes last.
std::vector<uint64_t> bytes_by_depth(const ModelInfo& info, std::span<const Graph> graphs,
                                     const MemoryLayout& layout) {
    const size_t n_layers = layout.specs.size();
    size_t n_depths = 0;
    for (size_t i = 0; i < n_layers; ++i) n_depths = std::max(n_depths, depth_of(info, i) + 1);
    const auto depth = [&](size_t layer) {
        return layer == n_layers ? n_depths : depth_of(info, layer);
    };
    std::vector<uint64_t> bytes(n_depths + 1);
    for (const StorageInfo& storage : layout.storage)
        bytes[depth(storage.id.layer)] += storage.bytes();
    std::set<std::pair<size_t, WeightId>> counted;
    for (const Graph& graph : graphs) {
        const std::vector<size_t> layers = node_layers(graph, n_layers);
        for (NodeId i = 0; i < layers.size(); ++i)
            for_each_operand(graph.node(i).op, [&](NodeId id) {
                if (const auto* weight = std::get_if<ops::Weight>(&graph.node(id).op))
                    if (counted.emplace(depth(layers[i]), weight->id).second)
                        bytes[depth(layers[i])] += graph.node(id).type.bytes();
            });
    }
    return bytes;
}

// Returns the device of each layer if `n` layers are not on the CPU.
std::vector<uint8_t> place(size_t n, size_t n_layers, std::span<const double> split) {
    std::vector<uint8_t> devices(n_layers, static_cast<uint8_t>(split.size()));
    const double all = std::accumulate(split.begin(), split.end(), 0.0);
    for (size_t i = 0; i < n; ++i) {
        const double passed = static_cast<double>(i) / static_cast<double>(n) * all;
        double end = 0.0;
        uint8_t device = 0;
        for (size_t d = 0; d < split.size(); ++d) {
            if (split[d] <= 0.0) continue;
            device = static_cast<uint8_t>(d);
            end += split[d];
            if (passed < end) break;
        }
        devices[n_layers - n + i] = device;
    }
    return devices;
}

bool fits(std::span<const uint8_t> devices, std::span<const uint64_t> bytes,
          std::span<const uint64_t> room) {
    std::vector<uint64_t> taken(room.size() + 1);
    for (size_t i = 0; i < devices.size(); ++i) taken[devices[i]] += bytes[i];
    return std::equal(room.begin(), room.end(), taken.begin(), std::greater_equal<>());
}

// Bytes that a device needs for a step, excluding weights and caches.
uint64_t step_bytes(std::span<const Graph> graphs, Backend& device, const InputLayout& inputs) {
    uint64_t max = 0;
    for (const Graph& graph : graphs)
        max = std::max(max, estimate_arena_bytes(graph, device, inputs, /*fuse=*/true));
    return max + inputs.bytes();
}

// By device: bytes for weights and caches.
std::vector<uint64_t> room_for_layers(std::span<const std::unique_ptr<Backend>> devices,
                                      std::span<const Graph> graphs, const InputLayout& inputs) {
    std::vector<uint64_t> room;
    for (const auto& device : devices) {
        const uint64_t free = device->free_bytes().value_or(UINT64_MAX);
        // A sixteenth is kept for pipelines, commands and other programs.
        const uint64_t left = free - free / 16;
        room.push_back(left - std::min(left, step_bytes(graphs, *device, inputs)));
    }
    return room;
}

// Returns the device of each depth. Layers without bytes, which the context does not run, go to the
// CPU and do not count.
std::vector<uint8_t> devices_by_depth(std::span<const uint64_t> bytes,
                                      std::span<const uint64_t> room, const LayerOptions& options) {
    const size_t output = bytes.size() - 1;
    std::vector<uint64_t> counted;
    for (size_t depth = 0; depth < bytes.size(); ++depth)
        if (bytes[depth] > 0 || depth == output) counted.push_back(bytes[depth]);
    const std::vector<uint8_t> devices = plait::place(counted, room, options);
    std::vector<uint8_t> result;
    auto next = devices.begin();
    for (size_t depth = 0; depth < bytes.size(); ++depth)
        result.push_back(bytes[depth] > 0 || depth == output ? *next++
                                                             : static_cast<uint8_t>(room.size()));
    return result;
}

// Logs "layers: 2 on cpu, 2 and the output on vulkan:0" unless all are on the first device.
void log_layers(const LayerDevices& placed, std::span<const std::unique_ptr<Backend>> devices) {
    const auto first = [](uint8_t device) { return device == 0; };
    if (first(placed.output) && std::ranges::all_of(placed.layers, first)) return;
    if (!log_enabled(LogLevel::info)) return;
    std::string all;
    for (size_t d = devices.size(); d-- > 0;) {
        const auto n = std::ranges::count(placed.layers, static_cast<uint8_t>(d));
        const bool output = placed.output == d;
        if (n == 0 && !output) continue;
        all += text(all.empty() ? "layers: " : ", ", n, output ? " and the output on " : " on ",
                    devices[d]->name());
    }
    log(LogLevel::info, all);
}

}  // namespace

std::vector<Graph> graphs_of(const Model& model, const PlanKey& step, const MemoryLayout& layout,
                             const BuildOptions& options) {
    std::vector<PlanKey> keys{step};
    if (model.info().has_encoder) {
        keys.push_back(step);
        keys.back().kind = GraphKind::encode;
        keys.back().output = OutputKind::none;
    }
    if (model.info().n_scores > 0) {
        PlanKey& scores = keys.emplace_back();
        scores.kind = GraphKind::score;
        scores.input = InputKind::embeddings;
        scores.output = OutputKind::embeddings;
        scores.n_tokens = scores.n_outputs = step.n_tokens;
    }
    for (uint8_t group = 0; group < layout.groups.size(); ++group) {
        if (!layout.groups[group].kind->has_cells) continue;
        for (const GraphKind kind : {GraphKind::copy_rows, GraphKind::shift_keys}) {
            PlanKey& moves = keys.emplace_back();
            moves.kind = kind;
            moves.group = group;
            moves.output = OutputKind::none;
            moves.n_moves = kMaxMovesPerRun;
        }
    }
    std::vector<Graph> graphs;
    for (const PlanKey& key : keys) {
        graphs.push_back(model.build(key, layout, options));
        prune(graphs.back());
    }
    return graphs;
}

std::vector<uint8_t> place(std::span<const uint64_t> bytes, std::span<const uint64_t> room,
                           const LayerOptions& options) {
    std::vector<double> split = options.split;
    if (split.empty())
        for (const uint64_t free : room) split.push_back(static_cast<double>(free));
    if (std::ranges::all_of(split, [](double share) { return share <= 0.0; }))
        split.assign(room.size(), 1.0);
    const size_t n_layers = bytes.size();
    if (options.n_gpu_layers) {
        const int64_t n = *options.n_gpu_layers;
        const bool all = n < 0 || static_cast<uint64_t>(n) > n_layers;
        return place(all ? n_layers : static_cast<size_t>(n), n_layers, split);
    }
    for (size_t n = n_layers; n > 0; --n)
        if (std::vector<uint8_t> devices = place(n, n_layers, split); fits(devices, bytes, room))
            return devices;
    return place(0, n_layers, split);
}

LayerDevices place_layers(const ModelInfo& info, std::span<const Graph> graphs,
                          const MemoryLayout& layout,
                          std::span<const std::unique_ptr<Backend>> devices,
                          const InputLayout& inputs, const LayerOptions& options) {
    const size_t n_layers = layout.specs.size();
    const auto host = static_cast<uint8_t>(devices.size() - 1);
    const std::vector<uint8_t> by_depth =
        devices_by_depth(bytes_by_depth(info, graphs, layout),
                         room_for_layers(devices.first(host), graphs, inputs), options);
    LayerDevices placed;
    for (size_t i = 0; i < n_layers; ++i) placed.layers.push_back(by_depth[depth_of(info, i)]);
    placed.output = by_depth.back();
    placed.caches = placed.layers;
    for (const Graph& graph : graphs) {
        const std::vector<NodeId> root = alias_roots(graph);
        for (NodeId id = 0; id < graph.nodes().size(); ++id) {
            const Node& node = graph.node(id);
            if (info_of(node.op).kind != OpKind::kernel) continue;
            if (std::ranges::none_of(devices,
                                     [&](const auto& d) { return d->supports(graph, id); }))
                no_kernel(devices[host]->name(), node);
            for_each_operand(node.op, [&](NodeId operand) {
                const auto* storage = std::get_if<ops::Storage>(&graph.node(root[operand]).op);
                if (storage == nullptr) return;
                uint8_t& cache = placed.caches[layout.storage[storage->index].id.layer];
                if (!devices[cache]->supports(graph, id)) cache = host;
            });
        }
    }
    log_layers(placed, devices);
    return placed;
}

DeviceSet join(std::vector<std::unique_ptr<Backend>> devices, LayerDevices placed) {
    const auto host = static_cast<uint8_t>(devices.size() - 1);
    std::vector<bool> used(devices.size());
    for (const uint8_t device : placed.layers) used[device] = true;
    used[placed.output] = used[host] = true;
    std::vector<uint8_t> number(devices.size());
    std::vector<std::unique_ptr<Backend>> kept;
    for (size_t d = 0; d < devices.size(); ++d) {
        number[d] = static_cast<uint8_t>(kept.size());
        if (used[d]) kept.push_back(std::move(devices[d]));
    }
    if (kept.size() == 1) return DeviceSet(std::move(kept.front()));
    for (uint8_t& device : placed.layers) device = number[device];
    for (uint8_t& device : placed.caches) device = number[device];
    placed.output = number[placed.output];
    return DeviceSet(std::move(kept), std::move(placed));
}

}  // namespace plait
