#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "memory/attention.h"

namespace plait {
namespace {

GroupInfo make_group(const AttentionSpec& spec, const MemoryOptions& options, int64_t n_rows) {
    // A piece lists the runs of each of its sequences, at worst one a key.
    const int64_t n_sequences = std::min<int64_t>(options.n_seq_max, options.n_batch);
    const int64_t runs = n_sequences * std::min(options.n_ctx, n_rows);
    // A sequence attended in both directions is never cut.
    const int64_t tokens =
        options.causal ? options.n_ubatch
                       : std::max<int64_t>(options.n_ubatch,
                                           std::min<int64_t>(options.n_batch, options.n_ctx));
    return {
        .kind = GroupKind::attention,
        .window = spec.window,
        .needs_key_positions = spec.needs_key_positions,
        .n_rows = static_cast<uint32_t>(n_rows),
        .max_runs =
            static_cast<uint32_t>(std::min<int64_t>(runs, std::numeric_limits<uint32_t>::max())),
        .max_write_rows = static_cast<uint32_t>(tokens),
    };
}

uint8_t find_group(std::vector<GroupInfo>& groups, const GroupInfo& wanted) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const GroupInfo& group) {
        return group.kind == wanted.kind && group.window == wanted.window &&
               group.needs_key_positions == wanted.needs_key_positions;
    });
    const auto index = static_cast<size_t>(found - groups.begin());
    PLAIT_CHECK(index < std::numeric_limits<uint8_t>::max());
    if (found == groups.end()) groups.push_back(wanted);
    return static_cast<uint8_t>(index);
}

StorageInfo make_storage(StorageId id, uint8_t group, DType dtype, int n_heads, int head_dim,
                         int64_t n_rows) {
    const uint64_t block = info(dtype).block_elements;
    const uint64_t elements = align_up(static_cast<uint64_t>(head_dim), block);
    return {
        .id = id,
        .group = group,
        .dtype = dtype,
        .n_heads = n_heads,
        .head_dim = head_dim,
        .head_elements = static_cast<int>(elements),
        .row_bytes = row_bytes(dtype, static_cast<uint64_t>(n_heads) * elements),
        .n_rows = static_cast<uint64_t>(n_rows),
    };
}

}  // namespace

MemoryLayout attention_layout(const MemorySpecs& specs, const MemoryOptions& options,
                              int64_t n_rows) {
    MemoryLayout layout;
    layout.specs = specs;
    for (size_t layer = 0; layer < specs.size(); ++layer) {
        for (size_t slot = 0; slot < specs[layer].size(); ++slot) {
            const auto& spec = std::get<AttentionSpec>(specs[layer][slot]);
            const uint8_t group = find_group(layout.groups, make_group(spec, options, n_rows));
            StorageId id{static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), 0};
            layout.storage.push_back(
                make_storage(id, group, options.keys, spec.n_kv_heads, spec.key_dim, n_rows));
            if (spec.value_dim == 0) continue;
            id.part = 1;
            layout.storage.push_back(
                make_storage(id, group, options.values, spec.n_kv_heads, spec.value_dim, n_rows));
        }
    }
    return layout;
}

}  // namespace plait
