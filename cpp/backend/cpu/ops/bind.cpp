#include "backend/cpu/ops/bind.h"

#include "base/error.h"

namespace plait::cpu {

Binder::Binder(const Segment& segment, Isa isa, CpuWeights& weights, int threads)
    : segment_(segment),
      isa_(isa),
      kernels_(cpu::kernels(isa)),
      weights_(weights),
      threads_(threads) {}

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
    return weights_.matrix(std::get<WeightOp>(graph().node(id).op).id, threads_);
}

Ref Binder::vector(NodeId id) {
    const float* data = weights_.vector(std::get<WeightOp>(graph().node(id).op).id);
    return {reinterpret_cast<uint64_t>(data), kFixed};
}

}  // namespace plait::cpu
