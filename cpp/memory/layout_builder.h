// Builds the layout of a memory from the specs of a model.
#pragma once

#include "memory/layout.h"

namespace plait {

class LayoutBuilder {
public:
    // `options.n_cells` must be set.
    explicit LayoutBuilder(const MemoryOptions& options) : options_(options) {}

    const MemoryOptions& options() const { return options_; }
    void add_layer(const std::vector<StateSpec>& slots);
    MemoryLayout take() { return std::move(layout_); }

    // For PartKind::add_slot(). Slots of the same kind, window and inputs share a group, whatever
    // their head counts and sizes.
    uint8_t find_group(const GroupInfo& wanted);
    // Adds rows of `n_heads` padded heads.
    void add_storage(StorageId id, uint8_t group, DType dtype, int n_heads, int head_dim,
                     bool rotated = false);
    // Max runs that one microbatch lists: one per key at worst, for each sequence of the batch.
    uint32_t max_runs(int64_t keys_per_sequence) const;

private:
    const MemoryOptions& options_;
    MemoryLayout layout_;
};

// `n`, or the largest uint32_t if that is less.
uint32_t saturate32(int64_t n);

}  // namespace plait
