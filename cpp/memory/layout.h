// What a model needs remembered (specs) and how it is stored (layout). Fixed for a context's life.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "tensor/dtype.h"

namespace plait {

enum class WindowKind : uint8_t { full, sliding, chunked, symmetric };
struct Window {
    WindowKind kind = WindowKind::full;
    int32_t tokens = 0;  // ignored when full
    friend bool operator==(const Window&, const Window&) = default;
};

// Keys and values of one attention block, a row a token.
struct AttentionSpec {
    int n_kv_heads = 0;
    int key_dim = 0;
    int value_dim = 0;         // 0: no value rows, values are part of the keys (MLA):
    int value_dim_in_key = 0;  // so many leading elements of a head
    Window window;
    bool needs_key_positions = false;  // ALiBi, T5 buckets
    bool shifts = true;                // keys are rotated by position, so seq_add re-rotates them
    // Rotating multiplies by a magnitude as well (YaRN): a shift then touches every key that the
    // sequence alone holds, also those that stay where they are. docs/decisions/0005
    bool shifts_magnify = false;
    friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};
// States of one recurrent block, a row a sequence; several kinds of state, each of its own size.
struct RecurrentSpec {
    std::vector<int64_t> elements;  // f32 elements of each kind; 0: this layer has none of it
    friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};
// Keys and values of an encoder's output: filled by encode(), read by decode().
struct CrossSpec {
    int n_kv_heads = 0;
    int key_dim = 0;
    int value_dim = 0;
    friend bool operator==(const CrossSpec&, const CrossSpec&) = default;
};
// Attention over the tokens of the piece alone: an encoder. Nothing is stored.
struct WithinSpec {
    Window window;
    bool needs_key_positions = false;
    friend bool operator==(const WithinSpec&, const WithinSpec&) = default;
};
using StateSpec = std::variant<AttentionSpec, RecurrentSpec, CrossSpec, WithinSpec>;
using MemorySpecs = std::vector<std::vector<StateSpec>>;  // by layer, by slot

// Which part of a slot: keys or values of attention, or the k-th kind of recurrent state.
struct StorageId {
    uint16_t layer = 0;
    uint8_t slot = 0;
    uint8_t part = 0;  // 0 keys, 1 values; or the state kind
    friend bool operator==(const StorageId&, const StorageId&) = default;
};

// Rows of one part of one slot: [n_rows, n_heads * head_elements], heads one after the other. A
// head is padded to whole blocks of the dtype.
struct StorageInfo {
    StorageId id;
    uint8_t group = 0;  // rows are numbered per group
    DType dtype = DType::f32;
    int n_heads = 1;
    int head_dim = 0;        // elements used
    int head_elements = 0;   // elements stored: head_dim, padded to a block
    uint64_t row_bytes = 0;  // of all heads
    uint64_t n_rows = 0;
    uint64_t bytes() const { return row_bytes * n_rows; }
};

enum class GroupKind : uint8_t { attention, recurrent, cross, within };

// Layers that share row numbers.
struct GroupInfo {
    GroupKind kind = GroupKind::attention;
    Window window;
    bool needs_key_positions = false;
    uint32_t n_rows = 0;    // storage rows, all streams together
    uint32_t max_runs = 0;  // most runs a step can list
};

struct MemoryLayout {
    MemorySpecs specs;                 // by layer
    std::vector<StorageInfo> storage;  // in any order; find with at()
    std::vector<GroupInfo> groups;
    std::vector<std::vector<uint8_t>> slot_groups;  // by layer, by slot

    const StorageInfo& at(StorageId id) const;  // throws InternalError when absent
    size_t index(StorageId id) const;           // into `storage`
    uint8_t group_of(int layer, int slot) const {
        return slot_groups.at(static_cast<size_t>(layer)).at(static_cast<size_t>(slot));
    }
    uint64_t bytes() const;
};

}  // namespace plait
