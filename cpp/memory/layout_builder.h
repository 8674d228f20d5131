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

    // The following are for PartKind::add_slot().

    // Returns the group with the same kind, window and needs_key_positions as `wanted`, after
    // adding `wanted` if there is none. Slots of a group may differ in head counts and sizes.
    uint8_t find_group(const GroupInfo& wanted);
    // Adds a storage whose rows consist of `n_heads` heads, each padded to whole blocks of `dtype`.
    // `hadamard` is the size of StorageInfo::hadamard, for example from hadamard_block().
    void add_storage(StorageId id, uint8_t group, DType dtype, int n_heads, int head_dim,
                     bool rotated = false, int hadamard = 0);
    // Max runs in the view of one microbatch. In the worst case every key of every sequence of the
    // batch is a run.
    uint32_t max_runs(int64_t keys_per_sequence) const;

private:
    const MemoryOptions& options_;
    MemoryLayout layout_;
};

// The block size of the Hadamard transform of heads that a cache of this type stores: the largest
// power of two that divides `head_dim` and `value_dim` (the elements of a key that are its value,
// or 0), up to 32. 0 (no transform) for types without blocks and for sizes below 16.
int hadamard_block(DType dtype, int head_dim, int value_dim = 0);

// Returns min(n, UINT32_MAX).
uint32_t saturate32(int64_t n);

}  // namespace plait
