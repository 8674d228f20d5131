#include "memory/layout_builder.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/blocks/hadamard.h"

namespace plait {

uint32_t saturate32(int64_t n) {
    return static_cast<uint32_t>(std::min<int64_t>(n, std::numeric_limits<uint32_t>::max()));
}

void LayoutBuilder::add_layer(const std::vector<StateSpec>& slots) {
    const size_t layer = layout_.specs.size();
    layout_.specs.push_back(slots);
    auto& groups = layout_.slot_groups.emplace_back();
    for (size_t slot = 0; slot < slots.size(); ++slot) {
        const StorageId id{static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), 0};
        groups.push_back(slots[slot].kind().add_slot(*this, id, slots[slot]));
    }
}

uint8_t LayoutBuilder::find_group(const GroupInfo& wanted) {
    auto& groups = layout_.groups;
    const auto found = std::ranges::find_if(groups, [&](const GroupInfo& group) {
        return group.kind == wanted.kind && group.window == wanted.window &&
               group.needs_key_positions == wanted.needs_key_positions &&
               group.always_causal == wanted.always_causal;
    });
    const auto index = static_cast<size_t>(found - groups.begin());
    PLAIT_CHECK(index < std::numeric_limits<uint8_t>::max());
    if (found == groups.end()) groups.push_back(wanted);
    return static_cast<uint8_t>(index);
}

void LayoutBuilder::add_storage(StorageId id, uint8_t group, DType dtype, int n_heads, int head_dim,
                                bool rotated, int hadamard) {
    const uint64_t block = info(dtype).block_elements;
    const uint64_t elements = align_up(static_cast<uint64_t>(head_dim), block);
    layout_.storage.push_back({
        .id = id,
        .group = group,
        .dtype = dtype,
        .n_heads = n_heads,
        .head_dim = head_dim,
        .head_elements = static_cast<int>(elements),
        .row_bytes = row_bytes(dtype, static_cast<uint64_t>(n_heads) * elements),
        .n_rows = layout_.groups[group].n_rows,
        .rotated = rotated,
        .hadamard = hadamard,
    });
}

int hadamard_block(DType dtype, int head_dim, int value_dim) {
    if (!is_block_type(dtype)) return 0;
    const auto elements = static_cast<unsigned>(head_dim | value_dim);
    const int block = std::min(1 << std::countr_zero(elements), kMaxHadamard);
    return block < kMinHadamard ? 0 : block;
}

uint32_t LayoutBuilder::max_runs(int64_t keys_per_sequence) const {
    return saturate32(std::min<int64_t>(options_.n_seq_max, options_.n_batch) * keys_per_sequence);
}

}  // namespace plait
