#include "backend/joint/parts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "backend/bind_computed.h"

namespace plait::joint {
namespace {

class Cutter {
public:
    Cutter(const Segment& segment, const Crossings& crossings,
           const std::vector<DeviceView>& devices)
        : segment_(segment), crossings_(crossings), devices_(devices) {}

    std::vector<Part> cut() {
        const std::span<const NodeId> nodes = segment_.nodes;
        std::vector<Part> parts;
        for (size_t begin = 0, end = 0; begin < nodes.size(); begin = end) {
            while (end < nodes.size() && run_of(nodes[end]) == run_of(nodes[begin])) ++end;
            add(nodes.subspan(begin, end - begin), parts);
        }
        return parts;
    }

private:
    uint32_t run_of(NodeId node) const { return crossings_.runs[node]; }
    const Node& node(NodeId id) const { return segment_.graph.node(id); }

    void add(std::span<const NodeId> nodes, std::vector<Part>& parts) {
        const auto first =
            std::ranges::find_if(nodes, [&](NodeId id) { return computes(node(id)); });
        if (first == nodes.end()) return;
        Part part;
        part.device = node(*first).device;
        const DeviceView& device = devices_[part.device];
        part.executable = device.backend.compile({segment_.graph, nodes, segment_.stages,
                                                  crossings_.places[part.device], device.weights,
                                                  device.storage, segment_.scratch_offset});
        for (const Crossing& crossing : crossings_.copies) {
            // What was edited was made between executables, so whoever reads it first fetches it.
            if (crossing.edited) {
                if (crossing.to == part.device && reads(nodes, crossing.value) &&
                    fetched_.emplace(crossing.value, crossing.to).second)
                    part.before.push_back(copy(crossing));
            } else if (run_of(crossing.value) == run_of(*first)) {
                part.after.push_back(copy(crossing));
            }
        }
        parts.push_back(std::move(part));
    }

    bool reads(std::span<const NodeId> nodes, NodeId value) const {
        bool any = false;
        for (const NodeId id : nodes)
            for_each_operand(node(id).op,
                             [&](NodeId operand) { any |= crossings_.root[operand] == value; });
        return any;
    }

    Copy copy(const Crossing& crossing) const {
        const Node& value = node(crossing.value);
        const int64_t rows = value.extent == Extent::fixed ? 1 : value.type.shape[0];
        return {find(crossing.from_place, value.device), find(crossing.to_place, crossing.to),
                value.extent, value.type.bytes() / static_cast<uint64_t>(rows)};
    }

    HostPlace find(const Place& place, uint8_t device) const {
        if (place.space != Space::storage) return {nullptr, place};
        const Exchange& exchange = devices_[device].exchange;
        const bool sent = place.id == segment_.storage.size();
        return {(sent ? exchange.sent : exchange.received)->host() + place.offset, {}};
    }

    const Segment& segment_;
    const Crossings& crossings_;
    const std::vector<DeviceView>& devices_;
    std::set<std::pair<NodeId, uint8_t>> fetched_;
};

}  // namespace

std::vector<Part> cut(const Segment& segment, const Crossings& crossings,
                      const std::vector<DeviceView>& devices) {
    return Cutter(segment, crossings, devices).cut();
}

}  // namespace plait::joint
