#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    PLAIT_CHECK(storage.shape.rank == 2 && heads > 0 && storage.shape[1] % heads == 0);
    const int64_t head = storage.shape[1] / heads;
    PLAIT_CHECK(head % info(storage.dtype).block_elements == 0);
    const auto bytes = [&](int64_t elements) {
        return static_cast<uint32_t>(row_bytes(storage.dtype, static_cast<uint64_t>(elements)));
    };
    return {storage.dtype, to_u32(head), bytes(head), bytes(storage.shape[1])};
}

}  // namespace plait::vulkan
