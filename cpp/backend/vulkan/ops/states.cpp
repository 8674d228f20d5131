#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {

States states_of(const Node& node, Binder& binder) {
    const auto from_last = [&](size_t i) { return node.inputs[node.inputs.size() - i]; };
    const TensorType& storage = binder.type(from_last(4));
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(from_last(4)), binder.ref(from_last(3)), binder.ref(from_last(2)),
            binder.ref(from_last(1)), to_u32(storage.shape[1])};
}

}  // namespace plait::vulkan
