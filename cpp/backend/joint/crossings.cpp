#include "backend/joint/crossings.h"

#include <algorithm>

#include "backend/bind_computed.h"
#include "base/error.h"
#include "base/first_fit.h"
#include "graph/alias_roots.h"

namespace plait::joint {
namespace {

constexpr uint64_t kAlignment = 128;

bool is_edit(const Node& node) { return std::holds_alternative<ops::Edit>(node.op); }
bool is_made(const Node& node) { return computes(node) || is_edit(node); }

// Who reads a value, by device: the last run that does.
struct Readers {
    uint32_t devices = 0;  // bit d: device d does
    uint32_t last_run[kMostDevices] = {};

    void add(uint8_t device, uint32_t run) {
        devices |= 1u << device;
        last_run[device] = run;
    }
    bool has(size_t device) const { return (devices >> device & 1) != 0; }
};

std::vector<uint32_t> find_runs(const Graph& graph) {
    std::vector<uint32_t> runs;
    uint32_t run = 0;
    const Node* before = nullptr;
    for (const Node& node : graph.nodes()) {
        if (is_made(node)) {
            if (before != nullptr &&
                (node.device != before->device || is_edit(node) || is_edit(*before)))
                ++run;
            before = &node;
        }
        runs.push_back(run);
    }
    return runs;
}

}  // namespace

Crossings find_crossings(const Graph& graph, std::span<const Place> places, size_t n_storage,
                         uint8_t host) {
    const size_t n_devices = size_t{host} + 1;
    const auto sent_id = static_cast<uint32_t>(n_storage);
    const uint32_t received_id = sent_id + 1;
    Crossings found;
    found.runs = find_runs(graph);
    found.root = alias_roots(graph);
    found.places.assign(n_devices, {places.begin(), places.end()});

    std::vector<Readers> readers(graph.nodes().size());
    for (NodeId i = 0; i < readers.size(); ++i) {
        const Node& node = graph.node(i);
        if (!is_made(node)) continue;
        for_each_operand(
            node.op, [&](NodeId id) { readers[found.root[id]].add(node.device, found.runs[i]); });
    }
    for (const auto& [id, node] : graph.outputs())
        if (id >= OutputId::first_captured) readers[found.root[node]].add(host, found.runs.back());

    std::vector<FirstFit> sent(n_devices, FirstFit(kAlignment)), received = sent;
    std::vector<std::pair<NodeId, uint8_t>> moved;  // values, where their place is another one
    for (NodeId i = 0; i < readers.size(); ++i) {
        const Node& node = graph.node(i);
        const uint8_t from = node.device;
        if (!is_made(node) || (readers[i].devices & ~(1u << from)) == 0) continue;
        const uint32_t run = found.runs[i];
        const uint64_t bytes = node.type.bytes();
        Place& made = found.places[from][i];
        // An operation on a cache may give the cache itself, which does not cross.
        PLAIT_CHECK(made.space == Space::arena || made.space == Space::output);
        if (from != host && made.space == Space::arena) {
            const uint32_t last = std::max(run, readers[i].last_run[from]);
            made = {.space = Space::storage,
                    .id = sent_id,
                    .offset = sent[from].take(bytes, run, last)};
            moved.emplace_back(i, from);
        }
        for (uint8_t to = 0; to < n_devices; ++to) {
            if (to == from || !readers[i].has(to)) continue;
            Place& there = found.places[to][i];
            if (to != host) {
                there = {.space = Space::storage,
                         .id = received_id,
                         .offset = received[to].take(bytes, run, readers[i].last_run[to])};
                moved.emplace_back(i, to);
            } else if (there.space == Space::output) {
                continue;  // whoever computes it hands it to the caller, which is the host
            }
            found.copies.push_back({i, to, is_edit(node), made, there});
        }
    }
    for (const auto& [value, device] : moved)
        for (NodeId i = value; i < readers.size(); ++i)
            if (found.root[i] == value) found.places[device][i] = found.places[device][value];
    for (size_t d = 0; d < n_devices; ++d) {
        found.sent.push_back(sent[d].bytes());
        found.received.push_back(received[d].bytes());
    }
    return found;
}

}  // namespace plait::joint
