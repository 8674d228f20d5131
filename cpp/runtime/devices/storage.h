// The buffers of a context's caches: one for each part (keys, values or state) of each layer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "memory/memory.h"

namespace plait {

class Storage {
public:
    // Keeps a reference to `layout`.
    Storage(const MemoryLayout& layout, DeviceSet& devices);

    const MemoryLayout& layout() const { return layout_; }
    std::span<Buffer* const> buffers() const { return pointers_; }  // by index in layout.storage
    // Dequantises one row of one part into `target`, [n_heads, head_dim], without padding.
    void read_row(const StorageInfo& info, size_t index, int32_t row, float* target) const;
    // The inverse: quantises [n_heads, head_dim] floats to the `info.row_bytes` bytes of a row.
    static void pack_row(const StorageInfo& info, const float* source, std::byte* target);

private:
    const MemoryLayout& layout_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<Buffer*> pointers_;
};

// A memory and the buffers of its rows. An encoder and its decoder share one.
struct StoredMemory {
    std::unique_ptr<Memory> memory;
    Storage storage;
    StoredMemory(std::unique_ptr<Memory> given, DeviceSet& devices)
        : memory(std::move(given)), storage(memory->layout(), devices) {}
};

}  // namespace plait
