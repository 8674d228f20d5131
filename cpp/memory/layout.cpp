#include "memory/layout.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace plait {

size_t MemoryLayout::index(StorageId id) const {
    const auto found = std::find_if(storage.begin(), storage.end(),
                                    [&](const StorageInfo& info) { return info.id == id; });
    if (found == storage.end())
        throw InternalError(text("no storage for part ", int{id.part}, " of slot ", int{id.slot},
                                 " of layer ", id.layer));
    return static_cast<size_t>(found - storage.begin());
}

const StorageInfo& MemoryLayout::at(StorageId id) const { return storage[index(id)]; }

uint64_t MemoryLayout::bytes() const {
    return std::accumulate(storage.begin(), storage.end(), uint64_t{0},
                           [](uint64_t n, const StorageInfo& info) { return n + info.bytes(); });
}

}  // namespace plait
