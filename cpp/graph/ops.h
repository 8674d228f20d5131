// Free functions that append one node each and check shapes on the way (InternalError: shapes were
// validated when the model was bound). Shapes are outermost first; n = tokens, h = heads,
// d = head size, m = model width, e = experts, u = experts used by a token.
#pragma once

#include "graph/graph.h"

namespace plait {

Value reshape(Value x, Shape shape);                    // same elements, same order; moves no bytes
Value split_heads(Value x, int n_heads);                // [n, h*d] -> [n, h, d]
Value merge_heads(Value x);                             // [n, h, d] -> [n, h*d]

Value embed(Value table, Value tokens);                 // [vocab, m], [n] i32 -> [n, m]
Value select_rows(Value x, Value rows);                 // [n, m], [k] i32 -> [k, m]

// y = x / sqrt(mean(x^2) + epsilon) * weight over the last axis; weight optional. arXiv:1910.07467
Value rms_norm(Value x, Value weight, float epsilon);   // [..., m], [m] -> [..., m]

// y = x W^T (+ bias). Quantised weights multiply rows of x rounded to int8, a scale per 32 values.
Value linear(Value x, Value weight, Value bias = {});   // [n, in], [out, in], [out] -> [n, out]
// x rounded for such products; made when a plan is compiled, never by a model. The result is opaque
// words, 40 bytes for every 32 values: codes, scales and sums as the backend likes them.
Value quantize_rows(Value x);                           // [n, in] -> [n, 10 * in/32] i32

// cos and sin of every position and pair, once for all layers. `factors` divide the frequencies.
Value rope_table(Value positions, const Rope& rope, Value factors = {});  // [n(, axes)] -> [n, n_rot/2, 2]
// Rotates the leading n_rot elements of each head. arXiv:2104.09864
Value rope(Value x, Value table, const Rope& rope);     // [n, h, d], [n, n_rot/2, 2] -> [n, h, d]

// Writes row i of x to row rows[i] of a cache, in the cache's type. The result stands for the cache
// after the write: what must see it takes it as input.
Value store_rows(Value storage, Value x, Value rows);   // [rows, h*d'], [n, h*d], [n] i32

// softmax(scale * q k^T) v over the keys [first, last) of each token's own sequence, read from the
// rows that `runs` lists. Heads q h/hk share a kv head. sinks: a logit per head joins the softmax.
struct AttendInputs {
    Value q;                // [n, h, key_dim]
    Value keys, values;     // storage, after store_rows
    Value token_begin;      // [s + 1] tokens of each sequence
    Value runs, run_begin;  // [runs, 4], [s + 1]
    Value first, last;      // [n]
    Value sinks;            // [h], optional
};
Value attend(const AttendInputs& in, const AttendOp& how);  // -> [n, h, value_dim]

Value operator+(Value a, Value b);                      // same shapes, or b [m] for every row
Value operator*(Value a, Value b);
Value scale(Value x, float factor);
Value softcap(Value x, float cap);                      // cap * tanh(x / cap)
Value activate(Value x, Activation how);
Value gate(Value g, Value up, Activation how);          // how(g) * up, elementwise

// The n_used experts of largest softmax weight, ties to the lower number, in descending order.
Value route(Value logits, const RouteOp& how);          // [n, e] -> [n, u, 2] i32: expert, f32 bits
// Row (i, j) of the result is x of token i (or of (i, j)) times the matrix of its j-th expert.
Value expert_linear(Value x, Value weight, Value routes, Value bias = {});  // [n, in] | [n, u, in], [e, out, in] -> [n, u, out]
Value combine(Value y, Value routes);                   // [n, u, m] -> [n, m], sum of weight * y by rank

// Applies the rotary function of deltas[i] positions to stored keys, its magnitude included.
Value rotate_rows(Value storage, Value rows, Value deltas, const Rope& rope, int n_heads, int head_dim, Value factors = {});
Value copy_rows(Value storage, Value from, Value to);   // row to[i] = row from[i], in order

}  // namespace plait
