#include "backend/vulkan/ops/bind.h"

#include <algorithm>

#include "backend/shared/operands.h"
#include "base/checked.h"

namespace plait::vulkan {
namespace {

constexpr uint64_t kMaxGroups = 65535;  // per axis, on every device

}  // namespace

uint32_t Axis::groups(const Frame& frame) const {
    const uint64_t all = rows.in(frame)*items;
    return static_cast<uint32_t>(std::min(kMaxGroups, (all + per_group - 1) / per_group));
}

Ref Binder::ref(NodeId id) const {
    const Place& place = segment_.places[id];
    switch (place.space) {
    case Space::arena: return {place.offset, kArena};
    case Space::input: return {place.offset, kInputs};
    case Space::output: return {place.offset, place.index == 0 ? kOutput0 : kOutput1};
    case Space::storage: return {segment_.storage[place.id]->address() + place.offset, kFixed};
    case Space::sent: return {segment_.sent->address() + place.offset, kFixed};
    case Space::received: return {segment_.received->address() + place.offset, kFixed};
    case Space::weight:
    case Space::nowhere: break;
    }
    throw InternalError("a node was bound whose result has no place in memory");
}

Ref Binder::operand(NodeId id) {
    const WeightView view = weight_view(nodes_, id);
    if (view.weight == nullptr) return ref(id);
    const auto [store, weight] = find(*view.weight);
    return {store.vector(weight) + view.offset, kFixed};
}

const Matrix& Binder::matrix(NodeId id) {
    const auto [store, weight] = find(std::get<ops::Weight>(node(id).op));
    return store.matrix(weight);
}

std::vector<float> Binder::values(NodeId id) const {
    const auto [store, weight] = find(std::get<ops::Weight>(node(id).op));
    return store.values(weight);
}

Ref Binder::scratch(const Node& node, uint64_t bytes) {
    const uint32_t stage = segment_.stages[id_of(node)];
    if (stage != scratch_stage_) scratch_used_ = 0;
    scratch_stage_ = stage;
    const Ref ref{segment_.scratch_offset + scratch_used_, kArena};
    scratch_used_ += align_up(bytes, 128);
    scratch_bytes_ = std::max(scratch_bytes_, scratch_used_);
    return ref;
}

Ref Binder::constant_bytes(std::span<const std::byte> bytes) {
    const size_t offset = align_up(constants_.size(), 16);
    constants_.resize(offset);
    constants_.insert(constants_.end(), bytes.begin(), bytes.end());
    return {offset, kConstants};
}

}  // namespace plait::vulkan
