#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    const HeadLayout layout = head_layout(storage, heads);
    return {layout.dtype, to_u32(layout.head_elements), to_u32(layout.head_bytes),
            to_u32(layout.row_bytes)};
}

}  // namespace plait::vulkan
