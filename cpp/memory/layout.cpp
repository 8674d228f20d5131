#include "memory/layout.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace plait {

size_t MemoryLayout::index(StorageId id) const {
    const auto found = std::ranges::find(storage, id, &StorageInfo::id);
    if (found == storage.end())
        throw InternalError(text("no storage for part ", int{id.part}, " of slot ", int{id.slot},
                                 " of layer ", id.layer));
    return static_cast<size_t>(found - storage.begin());
}

const StorageInfo& MemoryLayout::at(StorageId id) const { return storage[index(id)]; }

std::optional<CachedHeads> MemoryLayout::cached_heads(size_t layer, uint8_t part) const {
    for (size_t slot = 0; slot < specs[layer].size(); ++slot) {
        const StateSpec& spec = specs[layer][slot];
        if (spec.kind().cached_heads != nullptr)
            return spec.kind().cached_heads(
                {static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), part}, spec);
    }
    return std::nullopt;
}

bool MemoryLayout::has(const PartKind& kind) const {
    return std::ranges::find(groups, &kind, &GroupInfo::kind) != groups.end();
}

bool MemoryLayout::has_cells() const {
    return std::ranges::any_of(groups, [](const GroupInfo& g) { return g.kind->has_cells; });
}

bool MemoryLayout::rotates_keys(uint8_t group) const {
    return std::ranges::any_of(
        storage, [&](const StorageInfo& info) { return info.group == group && info.rotated; });
}

std::string MemoryLayout::storage_name(const StorageInfo& info) const {
    return text(spec(info).kind().storage_name(info.id.part), " of layer ", info.id.layer);
}

uint64_t MemoryLayout::bytes() const {
    return std::accumulate(storage.begin(), storage.end(), uint64_t{0},
                           [](uint64_t n, const StorageInfo& info) { return n + info.bytes(); });
}

}  // namespace plait
