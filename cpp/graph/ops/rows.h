// Ops that look up, select, store or copy whole rows.
#pragma once

#include "graph/op_enums.h"
#include "graph/op_info.h"

namespace plait {
namespace ops {

struct Embed {
    Operand table;   // [vocab, m]
    Operand tokens;  // [n] i32
    static constexpr OpInfo kInfo{.name = "embed"};
    static constexpr auto kOperands = operands(&Embed::table, &Embed::tokens);
    static constexpr auto kAdaptable = &Embed::table;
    bool operator==(const Embed&) const = default;
};

struct SelectRows {
    Operand x;     // [n, ...]
    Operand rows;  // [k] i32
    // [s + 1] i32, for passes: the rows ascend, and these are the first ones of each sequence.
    OptionalOperand begin;
    static constexpr OpInfo kInfo{.name = "select_rows"};
    static constexpr auto kOperands =
        operands(&SelectRows::x, &SelectRows::rows, &SelectRows::begin);
    bool operator==(const SelectRows&) const = default;
};

struct StoreRows {
    Operand storage;  // [rows, h*d']
    Operand x;        // [n, h*d] or [n, h, d]
    Operand rows;     // [n] i32
    static constexpr OpInfo kInfo{.name = "store_rows", .writes_storage = true, .in_place = true};
    static constexpr auto kOperands =
        operands(&StoreRows::storage, &StoreRows::x, &StoreRows::rows);
    bool operator==(const StoreRows&) const = default;
};

struct CopyRows {
    Operand storage;   // [rows, width]
    Operand from, to;  // [moves] i32
    static constexpr OpInfo kInfo{.name = "copy_rows", .writes_storage = true, .in_place = true};
    static constexpr auto kOperands = operands(&CopyRows::storage, &CopyRows::from, &CopyRows::to);
    bool operator==(const CopyRows&) const = default;
};

// Changes some rows of x. picks[i] is a pair: the first element in `rows` of what row i is combined
// with, or -1 if the row stays as it is; and the RowChange. If `rows` has one row for each row of x,
// row i is combined with row i, and a first number of 0 or more only selects it.
struct EditRows {
    Operand x;      // [n, ...]
    Operand rows;   // [elements], or the shape of x
    Operand picks;  // [n, 2] i32
    static constexpr OpInfo kInfo{.name = "edit_rows", .row_wise = true};
    static constexpr auto kOperands = operands(&EditRows::x, &EditRows::rows, &EditRows::picks);
    bool operator==(const EditRows&) const = default;
};

}  // namespace ops

Value embed(Value table, Value tokens);  // [vocab, m], [n] i32 -> [n, m]
// [n, ...], [k] i32 -> [k, ...]; begin: see ops::SelectRows.
Value select_rows(Value x, Value rows, Value begin = {});

// Writes row i of x to row rows[i] of a cache, in the cache's type. The result is the cache after
// the write; a node that must see the write takes it as operand.
Value store_rows(Value storage, Value x, Value rows);  // [rows, h*d'], [n, h*d], [n] i32

// Copies row from[i] to row to[i], in order.
Value copy_rows(Value storage, Value from, Value to);  // [rows, width], [moves] i32, [moves] i32

Value edit_rows(Value x, Value rows, Value picks);  // same shape as x; see ops::EditRows

}  // namespace plait
