#include "backend/cpu/ops/bind.h"

#include "backend/shared/operands.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

Ref address(const Buffer& buffer, uint64_t offset) { return {buffer.address() + offset, kFixed}; }

}  // namespace

Binder::Binder(std::span<const CpuNode> nodes, const Segment& segment, Isa isa, int threads)
    : nodes_(nodes), segment_(segment), isa_(isa), kernels_(cpu::kernels(isa)), threads_(threads) {}

Ref Binder::ref(NodeId id) const {
    const Place& place = segment_.places[id];
    switch (place.space) {
    case Space::arena: return {place.offset, kArena};
    case Space::input: return {place.offset, kInputs};
    case Space::output:
        return {place.offset, static_cast<uint8_t>(place.index == 0 ? kOutput0 : kOutput1)};
    case Space::storage: return address(*segment_.storage[place.id], place.offset);
    case Space::sent: return address(*segment_.sent, place.offset);
    case Space::received: return address(*segment_.received, place.offset);
    case Space::weight:
    case Space::nowhere: break;
    }
    throw InternalError("a node was bound whose result has no place in memory");
}

const PackedWeight& Binder::matrix(NodeId id) {
    const auto [store, weight] =
        segment_.weights.find<CpuWeights>(std::get<ops::Weight>(node(id).op).id);
    return store.matrix(weight, threads_);
}

Ref Binder::operand(NodeId id) {
    const WeightView view = weight_view(nodes_, id);
    if (view.weight == nullptr) return ref(id);
    const auto [store, weight] = segment_.weights.find<CpuWeights>(view.weight->id);
    return {reinterpret_cast<uint64_t>(store.vector(weight)) + view.offset, kFixed};
}

}  // namespace plait::cpu
