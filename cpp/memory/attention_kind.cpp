// The kind "attention": keys and values, stored by AttentionPart or SlidingPart.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "memory/attention.h"
#include "memory/layout_builder.h"
#include "memory/sliding.h"
#include "memory/window.h"

namespace plait {
namespace {

uint8_t add_attention_slot(LayoutBuilder& builder, StorageId id, const StateSpec& slot) {
    const auto spec = slot.get<AttentionSpec>();
    PLAIT_CHECK(spec.n_kv_heads > 0 && spec.key_dim > 0 && spec.value_dim >= 0);
    PLAIT_CHECK(spec.value_dim > 0 || spec.value_dim_in_key <= spec.key_dim);
    PLAIT_CHECK(spec.window.kind == WindowKind::full || spec.window.tokens > 0);
    const MemoryOptions& options = builder.options();
    const int64_t n_streams = options.streams ? options.n_seq_max : 1;
    const int64_t rows = frees_rows(spec.window, options)
                             ? sliding_rows(spec.window, options) * n_streams
                             : options.n_cells.value();
    const uint8_t group = builder.find_group({
        .kind = &AttentionSpec::kind(),
        .window = spec.window,
        .needs_key_positions = spec.needs_key_positions,
        .always_causal = spec.always_causal,
        .n_rows = saturate32(rows),
        .max_runs = builder.max_runs(std::min(options.n_ctx, rows / n_streams)),
    });
    builder.add_storage(
        id, group, options.keys, spec.n_kv_heads, spec.key_dim, spec.shifts,
        hadamard_block(options.keys, spec.key_dim, spec.value_dim > 0 ? 0 : spec.value_dim_in_key));
    id.part = 1;
    if (spec.value_dim > 0)
        builder.add_storage(id, group, options.values, spec.n_kv_heads, spec.value_dim, false,
                            hadamard_block(options.values, spec.value_dim));
    return group;
}

CachedHeads cached_heads(StorageId id, const StateSpec& of) {
    const auto spec = of.get<AttentionSpec>();
    if (id.part == 0) return {id, spec.key_dim};
    if (spec.value_dim > 0) return {id, spec.value_dim};
    id.part = 0;  // the values are part of the keys
    return {id, spec.value_dim_in_key};
}

std::string attention_storage_name(uint8_t part) { return part == 0 ? "keys" : "values"; }

// Groups with the same window share rows, and so do all groups that free none.
void add_attention_parts(const MemoryLayout& layout, std::span<const uint8_t> groups,
                         const MemoryOptions& options, Parts& parts) {
    // Sorted by the number of keys kept, largest first: the first part reports positions and cells.
    using Order = std::tuple<int64_t, WindowKind, int32_t>;
    std::map<Order, std::vector<uint8_t>> by_window;
    for (const uint8_t group : groups) {
        const Window& window = layout.groups[group].window;
        Order order{INT64_MIN, WindowKind::full, 0};
        if (frees_rows(window, options)) order = {-max_kept(window), window.kind, window.tokens};
        by_window[order].push_back(group);
    }
    for (const auto& [order, sharing] : by_window) {
        if (frees_rows(layout.groups[sharing[0]].window, options)) {
            parts.add(std::make_unique<SlidingPart>(layout, sharing, options), sharing);
        } else {
            parts.add(std::make_unique<AttentionPart>(layout, sharing, options), sharing);
        }
    }
}

constinit const PartKind kAttention{
    .name = "attention",
    .code = 0,
    .has_cells = true,
    .add_slot = add_attention_slot,
    .cached_heads = cached_heads,
    .storage_name = attention_storage_name,
    .add_parts = add_attention_parts,
};

}  // namespace

const PartKind& AttentionSpec::kind() { return kAttention; }

}  // namespace plait
