// Attention over the keys and values of a cache, or of the step itself.
#pragma once

#include "graph/op_enums.h"
#include "graph/op_info.h"

namespace plait {

struct AttendParams {
    int n_heads;
    int n_kv_heads;
    int key_dim;
    int value_dim;
    float scale;
    float softcap;  // 0: none
    bool flash;     // one pass with a running softmax; otherwise all scores first
    PositionBias bias = PositionBias::none;
    float max_bias = 0.0f;         // of alibi
    int max_distance = 0;          // of buckets: all greater distances share the last bucket
    bool both_directions = false;  // of buckets: later keys use the second half of the buckets
    bool operator==(const AttendParams&) const = default;
};

// A factor of queries that grows with their position; Llama 4, "attention temperature tuning".
struct Temperature {
    float scale = 0.0f;  // 0: queries are not scaled
    int64_t length = 0;  // positions that share one factor
    int offset = 0;      // added to positions
    bool operator==(const Temperature&) const = default;
};

namespace ops {

// y = 1 + scale ln(1 + floor((position + offset) / length)), the factor of each token's queries.
struct Temperature {
    Operand positions;  // [n]
    plait::Temperature how;
    static constexpr OpInfo kInfo{.name = "temperature", .row_wise = true};
    static constexpr auto kOperands = operands(&Temperature::positions);
    bool operator==(const Temperature&) const = default;
};

// softmax(scale * q k^T) v over the keys [first, last) of each token's own sequence, in the cache
// rows that `runs` lists. Query heads h/hk share one key head. Keys and values that are not a cache
// but values of the graph, [n, hk*d], belong to the tokens of the step (an encoder).
struct Attend {
    Operand q;                      // [n, h, key_dim]
    Operand keys;                   // a cache, after its store_rows
    OptionalOperand values;         // the same; absent: the first value_dim elements of a key (MLA)
    Operand token_begin;            // [s + 1] tokens of each sequence
    Operand runs;                   // [runs, 4]
    Operand run_begin;              // [s + 1] into runs
    Operand first, last;            // [n]
    OptionalOperand sinks;          // [h], a logit per head that joins the softmax
    OptionalOperand positions;      // [n]; these three are present if there is a position bias
    OptionalOperand key_positions;  // per key of each sequence, the sequences in order
    OptionalOperand key_begin;      // [s + 1] into key_positions
    OptionalOperand bias;           // [buckets, h], present for PositionBias::buckets
    AttendParams params;
    static constexpr OpInfo kInfo{.name = "attend"};
    static constexpr auto kOperands =
        operands(&Attend::q, &Attend::keys, &Attend::values, &Attend::token_begin, &Attend::runs,
                 &Attend::run_begin, &Attend::first, &Attend::last, &Attend::sinks,
                 &Attend::positions, &Attend::key_positions, &Attend::key_begin, &Attend::bias);
    bool operator==(const Attend&) const = default;
};

}  // namespace ops

// The operands of ops::Attend.
struct AttendInputs {
    Value q;
    Value keys, values;
    Value token_begin;
    Value runs, run_begin;
    Value first, last;
    Value sinks;
    Value positions, key_positions, key_begin;
    Value bias;
};
Value attend(const AttendInputs& in, const AttendParams& params);  // -> [n, h, value_dim]
Value temperature(Value positions, const Temperature& how);        // [n] -> [n, 1]

}  // namespace plait
