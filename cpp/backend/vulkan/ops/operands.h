// What most bind() functions ask about a node.
#pragma once

#include "backend/vulkan/ops/bind.h"

namespace plait::vulkan {

inline uint32_t to_u32(int64_t n) {
    PLAIT_CHECK(n >= 0 && n <= UINT32_MAX);
    return static_cast<uint32_t>(n);
}

inline Rows rows_of(const Node& node) {
    return {static_cast<uint32_t>(node.extent), to_u32(node.type.shape[0])};
}
inline int64_t row_elements(const TensorType& type) {
    return type.shape[0] == 0 ? 0 : type.shape.elements() / type.shape[0];
}

// A workgroup for every `per_group` of the items that each row has.
inline Axis axis(Rows rows, int64_t items = 1, uint64_t per_group = 1) {
    return {rows, to_u32(items), per_group};
}
inline Axis fixed_axis(int64_t items, uint64_t per_group = 1) {
    return {Rows{}, to_u32(items), per_group};
}
// One for every 256 elements of the node: the shaders that treat each alone.
inline Axis elements_axis(const Node& node) {
    return axis(rows_of(node), row_elements(node.type), 256);
}

// Where the heads of a cache's rows are when a row holds `heads` of them, each padded to whole
// blocks.
struct CacheLayout {
    DType dtype;
    uint32_t head_elements, head_bytes, row_bytes;
};
CacheLayout cache_layout(const TensorType& storage, int64_t heads);

}  // namespace plait::vulkan
