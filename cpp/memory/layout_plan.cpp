#include "memory/layout_plan.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "memory/cross.h"
#include "memory/recurrent.h"
#include "memory/sliding.h"

namespace plait {
namespace {

constexpr int64_t kMost32 = std::numeric_limits<uint32_t>::max();

uint32_t most32(int64_t n) { return static_cast<uint32_t>(std::min(n, kMost32)); }

// A piece lists the runs of each of its sequences, at worst one a key.
int64_t most_runs(const MemoryOptions& options, int64_t keys_per_sequence) {
    return std::min<int64_t>(options.n_seq_max, options.n_batch) * keys_per_sequence;
}

class LayoutPlan {
public:
    LayoutPlan(const MemorySpecs& specs, const MemoryOptions& options) : options_(options) {
        layout_.specs = specs;
        for (size_t layer = 0; layer < specs.size(); ++layer) {
            auto& slots = layout_.slot_groups.emplace_back();
            for (size_t slot = 0; slot < specs[layer].size(); ++slot) {
                const StorageId id{static_cast<uint16_t>(layer), static_cast<uint8_t>(slot), 0};
                slots.push_back(std::visit([&](const auto& spec) { return add(id, spec); },
                                           specs[layer][slot]));
            }
        }
    }
    MemoryLayout take() { return std::move(layout_); }

private:
    uint8_t add(StorageId id, const AttentionSpec& spec) {
        const int64_t n_streams = options_.streams ? options_.n_seq_max : 1;
        const int64_t rows = gives_rows_back(spec.window, options_)
                                 ? sliding_rows(spec.window, options_) * n_streams
                                 : options_.n_cells.value();
        const uint8_t group = find_group({
            .kind = GroupKind::attention,
            .window = spec.window,
            .needs_key_positions = spec.needs_key_positions,
            .n_rows = most32(rows),
            .max_runs = most32(most_runs(options_, std::min(options_.n_ctx, rows / n_streams))),
        });
        add_heads(id, group, options_.keys, spec.n_kv_heads, spec.key_dim);
        id.part = 1;
        if (spec.value_dim > 0)
            add_heads(id, group, options_.values, spec.n_kv_heads, spec.value_dim);
        return group;
    }

    uint8_t add(StorageId id, const RecurrentSpec& spec) {
        const uint8_t group = find_group({
            .kind = GroupKind::recurrent,
            .n_rows = most32(recurrent_rows(options_)),
        });
        for (const int64_t elements : spec.elements) {
            PLAIT_CHECK(elements >= 0 && elements <= std::numeric_limits<int>::max());
            if (elements > 0) add_heads(id, group, DType::f32, 1, static_cast<int>(elements));
            ++id.part;
        }
        return group;
    }

    uint8_t add(StorageId id, const CrossSpec& spec) {
        const int64_t longest = std::min<int64_t>(options_.n_ctx, options_.n_batch);
        const uint8_t group = find_group({
            .kind = GroupKind::cross,
            .n_rows = most32(cross_rows(options_)),
            .max_runs = most32(most_runs(options_, longest)),
        });
        add_heads(id, group, options_.keys, spec.n_kv_heads, spec.key_dim);
        id.part = 1;
        add_heads(id, group, options_.values, spec.n_kv_heads, spec.value_dim);
        return group;
    }

    uint8_t add(StorageId, const WithinSpec& spec) {
        return find_group({
            .kind = GroupKind::within,
            .window = spec.window,
            .needs_key_positions = spec.needs_key_positions,
            .max_runs = most32(std::min(options_.n_seq_max, options_.n_batch)),
        });
    }

    uint8_t find_group(const GroupInfo& wanted) {
        auto& groups = layout_.groups;
        const auto found = std::ranges::find_if(groups, [&](const GroupInfo& group) {
            return group.kind == wanted.kind && group.window == wanted.window &&
                   group.needs_key_positions == wanted.needs_key_positions;
        });
        const auto index = static_cast<size_t>(found - groups.begin());
        PLAIT_CHECK(index < std::numeric_limits<uint8_t>::max());
        if (found == groups.end()) groups.push_back(wanted);
        return static_cast<uint8_t>(index);
    }

    void add_heads(StorageId id, uint8_t group, DType dtype, int n_heads, int head_dim) {
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
        });
    }

    const MemoryOptions& options_;
    MemoryLayout layout_;
};

}  // namespace

MemoryLayout plan_layout(const MemorySpecs& specs, const MemoryOptions& options) {
    return LayoutPlan(specs, options).take();
}

// Where tokens have several axes any number of them may share a position, so that no number of rows
// is enough for a window.
bool gives_rows_back(const Window& window, const MemoryOptions& options) {
    return window.kind != WindowKind::full && !options.swa_full && options.axes == 1;
}

}  // namespace plait
