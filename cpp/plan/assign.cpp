#include "plan/passes.h"

#include "backend/bind_nodes.h"
#include "graph/analysis.h"

namespace plait {

std::vector<uint8_t> assign_devices(const Graph& graph, const DeviceSet& devices,
                                    std::span<const size_t> storage_devices) {
    std::vector<uint8_t> assigned(graph.nodes().size());
    if (devices.size() == 1) return assigned;
    const LayerDevices& placed = devices.layers();
    const size_t n_layers = placed.layers.size();
    const std::vector<size_t> layers = node_layers(graph, n_layers);
    const std::vector<NodeId> roots = alias_roots(graph);
    const auto host = static_cast<uint8_t>(devices.host());
    for (NodeId i = 0; i < assigned.size(); ++i) {
        const Node& node = graph.node(i);
        if (const auto* edit = std::get_if<ops::Edit>(&node.op))
            assigned[i] = assigned[roots[edit->x]];
        if (info_of(node.op).kind != OpKind::kernel) continue;
        uint8_t device = layers[i] < n_layers ? placed.layers[layers[i]] : placed.output;
        bool accesses_cache = false;
        for_each_operand(node.op, [&](NodeId id) {
            if (const auto* cache = std::get_if<ops::Storage>(&graph.node(roots[id]).op)) {
                device = static_cast<uint8_t>(storage_devices[cache->index]);
                accesses_cache = true;
            }
        });
        if (!devices[device].supports(graph, i)) {
            if (accesses_cache || !devices[host].supports(graph, i))
                no_kernel(devices.names()[device], node);
            device = host;
        }
        assigned[i] = device;
    }
    return assigned;
}

}  // namespace plait
