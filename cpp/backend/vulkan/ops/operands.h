// Shader arguments that many ops share.
#pragma once

#include "backend/shared/operands.h"
#include "backend/vulkan/ops/bind.h"

namespace plait::vulkan {

inline uint32_t to_u32(int64_t n) {
    PLAIT_CHECK(n >= 0 && n <= UINT32_MAX);
    return static_cast<uint32_t>(n);
}

inline Rows rows_of(const Node& node) {
    return {static_cast<uint32_t>(node.extent), to_u32(node.type.shape[0])};
}

// One workgroup per `per_group` items; each row has `items` items.
inline Axis axis(Rows rows, int64_t items = 1, uint64_t per_group = 1) {
    return {rows, to_u32(items), per_group};
}
inline Axis fixed_axis(int64_t items, uint64_t per_group = 1) {
    return {Rows{}, to_u32(items), per_group};
}
// One workgroup per 256 elements of the node, for shaders that compute each element on its own.
inline Axis elements_axis(const Node& node) {
    return axis(rows_of(node), row_elements(node.type), 256);
}

// A CacheLayout in the integers that shaders read.
struct ShaderLayout {
    DType dtype;
    uint32_t head_elements, head_bytes, row_bytes;
};
inline ShaderLayout shader_layout(const TensorType& storage, int64_t heads) {
    const CacheLayout layout = cache_layout(storage, heads);
    return {layout.dtype, to_u32(layout.head_elements), to_u32(layout.head_bytes),
            to_u32(layout.row_bytes)};
}

}  // namespace plait::vulkan
