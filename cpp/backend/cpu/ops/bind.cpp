#include "backend/cpu/ops/bind.h"

#include "base/error.h"

namespace plait::cpu {

namespace {

// A store that this backend made, and the weight's number there.
std::pair<CpuWeights&, WeightId> find_weight(const Segment& segment, NodeId node) {
    const auto [store, id] =
        segment.weights.find(std::get<WeightOp>(segment.graph.node(node).op).id);
    return {dynamic_cast<CpuWeights&>(store), id};
}

}  // namespace

Binder::Binder(const Segment& segment, Isa isa, int threads)
    : segment_(segment), isa_(isa), kernels_(cpu::kernels(isa)), threads_(threads) {}

Ref Binder::ref(NodeId id) const {
    const Place& place = segment_.places[id];
    switch (place.space) {
    case Space::arena: return {place.offset, kArena};
    case Space::input: return {place.offset, kInputs};
    case Space::output:
        return {place.offset, static_cast<uint8_t>(place.index == 0 ? kOutput0 : kOutput1)};
    case Space::storage:
        return {reinterpret_cast<uint64_t>(segment_.storage[place.id]->host()) + place.offset,
                kFixed};
    case Space::weight:
    case Space::nowhere: break;
    }
    throw InternalError("a value without a place was bound");
}

const PackedWeight& Binder::matrix(NodeId id) {
    const auto [store, weight] = find_weight(segment_, id);
    return store.matrix(weight, threads_);
}

Ref Binder::vector(NodeId id) {
    const auto [store, weight] = find_weight(segment_, id);
    return {reinterpret_cast<uint64_t>(store.vector(weight)), kFixed};
}

}  // namespace plait::cpu
