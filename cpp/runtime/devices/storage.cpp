#include "runtime/devices/storage.h"

#include <algorithm>

#include "tensor/blocks/hadamard.h"
#include "tensor/convert.h"

namespace plait {

Storage::Storage(const MemoryLayout& layout, DeviceSet& devices) : layout_(layout) {
    for (const StorageInfo& info : layout.storage) {
        buffers_.push_back(devices.allocate_cache(info.bytes(), info.id.layer));
        pointers_.push_back(buffers_.back().get());
        // Row 0 is the state of an empty sequence, which is all zeros.
        if (layout.groups[info.group].kind->holds_states)
            buffers_.back()->write(0, std::vector<std::byte>(info.row_bytes));
    }
}

void Storage::read_row(const StorageInfo& info, size_t index, int32_t row, float* target) const {
    const auto stored = static_cast<size_t>(info.head_elements);
    std::vector<std::byte> raw(info.row_bytes);
    pointers_[index]->read(static_cast<uint64_t>(row) * info.row_bytes, raw);
    std::vector<float> values(stored * static_cast<size_t>(info.n_heads));
    dequantize(info.dtype, raw.data(), values.data(), values.size());
    for (size_t h = 0; h < static_cast<size_t>(info.n_heads); ++h) {
        float* head = target + h * static_cast<size_t>(info.head_dim);
        std::copy_n(values.data() + h * stored, info.head_dim, head);
        if (info.hadamard) hadamard(head, info.head_dim, info.hadamard);
    }
}

void Storage::pack_row(const StorageInfo& info, const float* source, std::byte* target) {
    const auto stored = static_cast<size_t>(info.head_elements);
    std::vector<float> values(stored * static_cast<size_t>(info.n_heads));
    for (size_t h = 0; h < static_cast<size_t>(info.n_heads); ++h) {
        float* head = values.data() + h * stored;
        std::copy_n(source + h * static_cast<size_t>(info.head_dim), info.head_dim, head);
        if (info.hadamard) hadamard(head, info.head_dim, info.hadamard);
    }
    quantize(info.dtype, values.data(), target, values.size());
}

}  // namespace plait
