// The bytes of a context's caches: one buffer for each part of each layer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "memory/layout.h"

namespace plait {

class Storage {
public:
    Storage(const MemoryLayout& layout, DeviceSet& devices);

    std::span<Buffer* const> buffers() const { return pointers_; }  // by index in layout.storage
    // Rows [row, row + 1) of one part, dequantised, without padding: [n_heads, head_dim].
    void read_row(const StorageInfo& info, size_t index, int32_t row, float* target) const;

private:
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<Buffer*> pointers_;
};

}  // namespace plait
