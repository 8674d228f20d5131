#include "backend/joint/backend.h"

#include <algorithm>

#include "backend/bind_computed.h"
#include "backend/joint/buffers.h"
#include "backend/joint/executable.h"
#include "backend/joint/parts.h"
#include "backend/joint/weights.h"
#include "backend/no_kernel.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/alias_roots.h"

namespace plait::joint {
namespace {

// What the caches are for one device: those that are there, then what it sends and receives.
std::vector<Buffer*> storage_on(size_t device, std::span<Buffer* const> storage,
                                const Exchange& exchange) {
    std::vector<Buffer*> mine;
    for (Buffer* buffer : storage) {
        auto& cache = dynamic_cast<Placed&>(*buffer);
        mine.push_back(cache.device() == device ? &cache.there() : nullptr);
    }
    mine.push_back(exchange.sent.get());
    mine.push_back(exchange.received.get());
    return mine;
}

}  // namespace

JointBackend::JointBackend(std::vector<std::unique_ptr<Backend>> members, LayerDevices layers)
    : members_(std::move(members)), layers_(std::move(layers)), exchange_(members_.size()) {
    PLAIT_CHECK(members_.size() >= 2 && members_.size() <= kMostDevices);
    for (const auto& member : members_) {
        std::string name(member->name());
        const auto same = [&](const auto& other) { return other->name() == member->name(); };
        const auto first = std::ranges::find_if(members_, same);
        const auto nth = std::count_if(first, std::ranges::find(members_, member), same);
        if (nth > 0) name += text("/", nth + 1);
        name_ += text(name_.empty() ? "" : " + ", name);
        devices_.push_back(std::move(name));
    }
    integrity_ = std::make_shared<Integrity>(name_);
}

std::vector<Backend*> JointBackend::members() {
    std::vector<Backend*> all;
    for (const auto& member : members_) all.push_back(member.get());
    return all;
}

std::string JointBackend::packing() const {
    std::string all;
    for (const auto& member : members_) all += text(all.empty() ? "" : " + ", member->packing());
    return all;
}

int JointBackend::n_threads() const {
    int most = 1;
    for (const auto& member : members_) most = std::max(most, member->n_threads());
    return most;
}

bool JointBackend::invariant() const {
    return std::ranges::all_of(members_, [](const auto& member) { return member->invariant(); });
}

CommandCounts JointBackend::commands() const {
    CommandCounts all;
    for (const auto& member : members_) {
        all.recorded += member->commands().recorded;
        all.submitted += member->commands().submitted;
    }
    return all;
}

std::unique_ptr<Buffer> JointBackend::allocate(uint64_t bytes) {
    std::vector<std::unique_ptr<Buffer>> parts;
    for (const auto& member : members_) parts.push_back(member->allocate(bytes));
    return std::make_unique<Mirrored>(std::move(parts));
}

std::unique_ptr<Buffer> JointBackend::allocate_inputs(uint64_t bytes) {
    std::vector<std::unique_ptr<Buffer>> parts;
    for (const auto& member : members_) parts.push_back(member->allocate_inputs(bytes));
    return std::make_unique<Mirrored>(std::move(parts));
}

std::unique_ptr<Buffer> JointBackend::allocate_cache(uint64_t bytes, int layer) {
    const uint8_t device = layers_.caches.at(static_cast<size_t>(layer));
    return std::make_unique<Placed>(device, members_[device]->allocate(bytes), integrity_);
}

std::shared_ptr<WeightStore> JointBackend::make_weight_store(
    std::shared_ptr<const WeightSource> source) {
    std::vector<std::shared_ptr<WeightStore>> parts;
    for (const auto& member : members_) parts.push_back(member->make_weight_store(source));
    return std::make_shared<JointWeights>(std::move(parts));
}

bool JointBackend::supports(const Graph& graph, NodeId node) const {
    return std::ranges::any_of(members_,
                               [&](const auto& member) { return member->supports(graph, node); });
}

// A node runs where the cache is that it works on, otherwise where its layer is.
void JointBackend::assign(Graph& graph, std::span<Buffer* const> storage) const {
    const std::vector<size_t> layers = layers_of(graph, layers_.layers.size());
    const std::vector<NodeId> root = alias_roots(graph);
    for (NodeId i = 0; i < layers.size(); ++i) {
        const Node& node = graph.node(i);
        if (!computes(node)) {
            graph.set_device(i, host());
            continue;
        }
        uint8_t device =
            layers[i] < layers_.layers.size() ? layers_.layers[layers[i]] : layers_.output;
        bool keeps = false;
        for_each_operand(node.op, [&](NodeId id) {
            if (const auto* cache = std::get_if<ops::Storage>(&graph.node(root[id]).op)) {
                device = dynamic_cast<const Placed&>(*storage[cache->index]).device();
                keeps = true;
            }
        });
        if (!members_[device]->supports(graph, i)) {
            if (keeps || !members_[host()]->supports(graph, i)) no_kernel(devices_[device], node);
            device = host();
        }
        graph.set_device(i, device);
    }
    // What is there without being computed counts as its first reader's.
    for (NodeId i = static_cast<NodeId>(layers.size()); i-- > 0;)
        for_each_operand(graph.node(i).op, [&](NodeId id) {
            const OpKind kind = info_of(graph.node(id).op).kind;
            if (kind == OpKind::source || kind == OpKind::view)
                graph.set_device(id, graph.node(i).device);
        });
}

void JointBackend::lower(Graph& graph, const Lowering& how) const {
    assign(graph, how.storage);
    for (uint8_t device = 0; device < members_.size(); ++device)
        members_[device]->lower(graph, {how.storage, how.fuse, device});
}

void JointBackend::reserve(const Crossings& crossings) {
    for (size_t d = 0; d < host(); ++d) {
        Exchange& room = exchange_[d];
        if (!room.sent || room.sent->bytes() < crossings.sent[d])
            room.sent = members_[d]->allocate_results(crossings.sent[d]);
        if (!room.received || room.received->bytes() < crossings.received[d])
            room.received = members_[d]->allocate_inputs(crossings.received[d]);
    }
}

std::unique_ptr<Executable> JointBackend::compile(const Segment& segment) {
    const Crossings crossings =
        find_crossings(segment.graph, segment.places, segment.storage.size(), host());
    reserve(crossings);
    std::vector<DeviceView> views;
    std::vector<std::shared_ptr<Buffer>> kept;
    for (size_t d = 0; d < members_.size(); ++d) {
        views.push_back({*members_[d], exchange_[d], segment.weights.parts([d](WeightStore& store) {
                             return dynamic_cast<JointWeights&>(store).on(d);
                         }),
                         storage_on(d, segment.storage, exchange_[d])});
        kept.insert(kept.end(), {exchange_[d].sent, exchange_[d].received});
    }
    return std::make_unique<JointExecutable>(cut(segment, crossings, views), std::move(kept),
                                             integrity_);
}

}  // namespace plait::joint
