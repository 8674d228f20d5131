// The specs (what a model stores per layer), the options of the caller, and the layout that results
// from both. All three are fixed for the life of a context.
#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace plait {

struct MemoryOptions {
    int64_t n_ctx = 4096;  // max tokens of one sequence
    int32_t n_seq_max = 1;
    std::optional<int64_t> n_cells;  // max tokens of all sequences; default: n_ctx * n_seq_max
    bool streams = false;            // reserve n_ctx rows per sequence instead of sharing rows
    bool swa_full = false;           // sliding windows keep all rows instead of freeing old ones
    DType keys = DType::f16;
    DType values = DType::f16;
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    int axes = 1;  // positions per token: 1, or 4 for M-RoPE
    bool causal = true;
};

enum class WindowKind : uint8_t { full, sliding, chunked, symmetric };
inline constexpr uint8_t kNumWindowKinds = 4;
struct Window {
    WindowKind kind = WindowKind::full;
    int32_t tokens = 0;  // ignored when full
    friend bool operator==(const Window&, const Window&) = default;
};

// Identifies one storage: keys or values of attention, or the k-th state of a recurrent layer.
struct StorageId {
    uint16_t layer = 0;
    uint8_t slot = 0;
    uint8_t part = 0;  // attention: 0 keys, 1 values; recurrent: index of the state
    friend bool operator==(const StorageId&, const StorageId&) = default;
};

// The first `head_dim` elements of every head of a storage.
struct CachedHeads {
    StorageId id;
    int head_dim = 0;
};

class LayoutBuilder;
class StateSpec;
struct MemoryLayout;
struct Parts;

// A kind of memory: its properties, and the functions that lay it out and build it. Each kind is
// one constant, defined next to its part. A spec refers to its kind; there is no list of kinds.
//
// To add a kind, write a spec, a PartKind and a class derived from Part, as
// tests/cpp/memory/new_kind_test.cpp does in one file. No other file of memory/ changes.
struct PartKind {
    std::string_view name;
    // Identifies the kind in saved states, so a code is never reused. Parts are sorted by code, and
    // the first part of a memory reports the memory's positions and cells.
    uint8_t code = 0;

    // The rows are the cells of the memory, one per token. They are limited by kv_cells, divided
    // among streams, and moved by edits and by defragmentation.
    bool has_cells = false;
    // There is one row per sequence, which steps read and overwrite. Row 0 of each storage is the
    // state of an empty sequence: all zeros, and never written.
    bool holds_states = false;
    // The keys are the tokens of the microbatch itself; nothing is stored.
    bool keys_are_tokens = false;

    // Names of a memory that contains this kind, without and with cells. If empty, the memory is
    // named after its other kinds.
    std::string_view memory_name;
    std::string_view memory_name_with_cells;

    // Adds the storage of one slot and returns its group.
    uint8_t (*add_slot)(LayoutBuilder& builder, StorageId id, const StateSpec& spec) = nullptr;
    // Returns the storage of the keys (part 0) or values (part 1) of a slot. Null if the kind
    // stores no keys and values.
    CachedHeads (*cached_heads)(StorageId id, const StateSpec& spec) = nullptr;
    // Name of a storage in errors and saved states, for example "keys".
    std::string (*storage_name)(uint8_t part) = nullptr;
    // Throws UnsupportedError if the kind does not work with the rest of the layout. May be null.
    void (*check)(const MemoryLayout& layout, const MemoryOptions& options) = nullptr;
    // Appends the parts that manage `groups`, which are all groups of this kind.
    void (*add_parts)(const MemoryLayout& layout, std::span<const uint8_t> groups,
                      const MemoryOptions& options, Parts& parts) = nullptr;
};

template <typename Spec>
concept SpecOfKind = requires {
    { Spec::kind() } -> std::same_as<const PartKind&>;
};

// A spec of any kind: what one slot of a layer stores.
class StateSpec {
public:
    template <SpecOfKind Spec>
    StateSpec(Spec spec) : kind_(&Spec::kind()), spec_(std::move(spec)) {}  // implicit

    const PartKind& kind() const { return *kind_; }
    // Null if the spec is of another type.
    template <SpecOfKind Spec>
    const Spec* get_if() const {
        return std::any_cast<Spec>(&spec_);
    }
    template <SpecOfKind Spec>
    Spec get() const {
        return std::any_cast<Spec>(spec_);
    }

private:
    const PartKind* kind_;
    std::any spec_;
};
using MemorySpecs = std::vector<std::vector<StateSpec>>;  // by layer, by slot

// Keys and values of one attention block, one row per token.
struct AttentionSpec {
    int n_kv_heads = 0;
    int key_dim = 0;
    int value_dim = 0;  // 0: no value rows; values are part of the keys (MLA)
    // If value_dim is 0, the value of a head is this many leading elements of its key.
    int value_dim_in_key = 0;
    Window window;
    bool needs_key_positions = false;  // ALiBi, T5 buckets
    bool always_causal = false;        // also for a batch that attends in both directions
    bool shifts = true;  // keys are rotated by position, so seq_add rotates them again
    static const PartKind& kind();
};

// States of one recurrent block, one row per sequence.
struct RecurrentSpec {
    std::vector<int64_t> elements;  // f32 elements of each state; 0: this layer lacks the state
    static const PartKind& kind();
};

// Keys and values of an encoder's output: written by encode(), read by decode().
struct CrossSpec {
    int n_kv_heads = 0;
    int key_dim = 0;
    int value_dim = 0;
    static const PartKind& kind();
};

// Attention among the tokens of the microbatch, as in an encoder. Nothing is stored.
struct WithinSpec {
    Window window;
    bool needs_key_positions = false;
    static const PartKind& kind();
};

// The rows of one storage: [n_rows, n_heads * head_elements]
struct StorageInfo {
    StorageId id;
    uint8_t group = 0;  // rows are numbered per group
    DType dtype = DType::f32;
    int n_heads = 1;
    int head_dim = 0;        // elements used
    int head_elements = 0;   // elements stored: head_dim, padded to whole blocks of the dtype
    uint64_t row_bytes = 0;  // of all heads
    uint64_t n_rows = 0;
    bool rotated = false;  // keys are rotated by position, so shifts rotate them again
    // Heads are stored after the Hadamard transform of blocks of this many elements, which spreads
    // large channels before they are rounded; 0: as they are.
    int hadamard = 0;
    uint64_t bytes() const { return row_bytes * n_rows; }
};

// Layers of one kind that share row numbers.
struct GroupInfo {
    const PartKind* kind = nullptr;
    Window window;
    bool needs_key_positions = false;
    bool always_causal = false;  // also for a batch that attends in both directions
    uint32_t n_rows = 0;         // storage rows, summed over streams
    uint32_t max_runs = 0;       // max runs in the view of a microbatch
};

struct MemoryLayout {
    MemorySpecs specs;                 // by layer, by slot
    std::vector<StorageInfo> storage;  // in any order; find with at()
    std::vector<GroupInfo> groups;
    std::vector<std::vector<uint8_t>> slot_groups;  // by layer, by slot

    const StorageInfo& at(StorageId id) const;  // throws InternalError if absent
    size_t index(StorageId id) const;           // into `storage`
    const StateSpec& spec(const StorageInfo& info) const {
        return specs[info.id.layer][info.id.slot];
    }
    uint8_t group_of(int layer, int slot) const {
        return slot_groups.at(static_cast<size_t>(layer)).at(static_cast<size_t>(slot));
    }
    // The keys (part 0) or values (part 1) of a layer; nullopt if it stores none.
    std::optional<CachedHeads> cached_heads(size_t layer, uint8_t part) const;
    bool has(const PartKind& kind) const;
    bool has_cells() const;                  // true if a group is of a kind with cells
    bool rotates_keys(uint8_t group) const;  // true if a storage of the group is rotated
    // A name for errors and saved states, for example "keys of layer 3".
    std::string storage_name(const StorageInfo& info) const;
    uint64_t bytes() const;
};

}  // namespace plait
