// Values that no kernel computes: weights, caches and inputs, views of other values, edits, and
// values that graphs exchange.
#pragma once

#include <cstdint>

#include "graph/op_info.h"
#include "tensor/weight_source.h"

namespace plait {

// The data that changes with every step, and how many elements it has.
enum class InputField : uint8_t {
    tokens,         // per token
    embeddings,     // per token, [n, width]
    positions,      // per token
    token_begin,    // per sequence of the microbatch, + 1
    output_tokens,  // per output
    output_begin,   // per sequence of the microbatch, + 1
    write_rows,     // per token, in an attention group
    first,          // the same
    last,           // the same
    output_first,   // `first` of the outputs
    output_last,    // `last` of the outputs
    runs,           // per run, in an attention group
    run_begin,      // per sequence, + 1, in an attention group
    key_positions,  // per key, in an attention group
    key_begin,      // per sequence, + 1, in an attention group
    read_states,    // per sequence, in a recurrent group
    write_states,   // the same
    from_rows,      // per move
    to_rows,        // per move
    deltas,         // per move
    adapter_scale,  // one number; `group` is its index in the adapter set
    // The scale of an adapter where sequences have adapters of their own, and whether it is used;
    // `group` is the index of its scale:
    adapter_token_scale,   // per token, [n, 1]
    adapter_output_scale,  // per output, [n, 1]
    adapter_token_picks,   // per token, [n, 2]; see ops::EditRows
    adapter_output_picks,  // per output, [n, 2]
    control,               // one per element of the residual stream; `group` is the layer
    // Of edits of rows, see insert_edits() in rewrite.h:
    edit_rows,          // elements of all edits; `group` determines how many fit
    edit_picks,         // per token, [n, 2]; `group` is the edit point
    edit_output_picks,  // per output, [n, 2]; `group` is the edit point
};
struct InputId {
    InputField field;
    uint16_t group = 0;  // the memory group that the rows belong to
    bool operator==(const InputId&) const = default;
};

// A weight as an architecture refers to it. An optional weight that is absent has no id.
struct Weight {
    static constexpr WeightId kNone = UINT32_MAX;
    WeightId id = kNone;
    TensorType type;
    explicit operator bool() const { return id != kNone; }
};

namespace ops {

struct Weight {
    WeightId id;
    static constexpr OpInfo kInfo{.name = "weight", .kind = OpKind::source};
    static constexpr auto kOperands = operands();
    bool operator==(const Weight&) const = default;
};

struct Storage {
    uint32_t index;  // into MemoryLayout::storage
    static constexpr OpInfo kInfo{.name = "storage", .kind = OpKind::source};
    static constexpr auto kOperands = operands();
    bool operator==(const Storage&) const = default;
};

struct Input {
    InputId id;
    static constexpr OpInfo kInfo{.name = "input", .kind = OpKind::source};
    static constexpr auto kOperands = operands();
    bool operator==(const Input&) const = default;
};

struct Reshape {
    Operand x;
    static constexpr OpInfo kInfo{.name = "reshape", .kind = OpKind::view, .row_wise = true};
    static constexpr auto kOperands = operands(&Reshape::x);
    bool operator==(const Reshape&) const = default;
};

struct WeightRow {
    Operand weight;  // [k, m]
    int64_t row;
    static constexpr OpInfo kInfo{.name = "weight_row", .kind = OpKind::view};
    static constexpr auto kOperands = operands(&WeightRow::weight);
    bool operator==(const WeightRow&) const = default;
};

// A value that the caller replaces on the host; see Editor in backend/backend.h.
struct Edit {
    Operand x;
    uint16_t index;  // into the edits of the call
    static constexpr OpInfo kInfo{.name = "edit", .kind = OpKind::host};
    static constexpr auto kOperands = operands(&Edit::x);
    bool operator==(const Edit&) const = default;
};

// Hands a value to the Receive of the same channel in another graph; see cut.h.
struct Send {
    Operand x;
    uint32_t channel;
    static constexpr OpInfo kInfo{.name = "send", .kind = OpKind::view};
    static constexpr auto kOperands = operands(&Send::x);
    bool operator==(const Send&) const = default;
};

struct Receive {
    uint32_t channel;
    static constexpr OpInfo kInfo{.name = "receive", .kind = OpKind::host};
    static constexpr auto kOperands = operands();
    bool operator==(const Receive&) const = default;
};

}  // namespace ops

Value reshape(Value x, Shape shape);      // same elements in the same order
Value split_heads(Value x, int n_heads);  // [n, h*d] -> [n, h, d]
Value merge_heads(Value x);               // [n, h, d] -> [n, h*d]

Value weight_row(Value weight, int64_t row);  // [k, m] -> [m], one row of a float weight

Value edit(Value x, uint16_t index);  // [n, ...] -> [n, ...]

}  // namespace plait
