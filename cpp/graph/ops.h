// Free functions that append one node each and check shapes on the way (InternalError: shapes were
// validated when the model was bound). Shapes are outermost first; n = tokens, h = heads,
// d = head size, m = model width, e = experts, u = experts used by a token.
#pragma once

#include "graph/graph.h"

namespace plait {

Value reshape(Value x, Shape shape);      // same elements, same order; moves no bytes
Value split_heads(Value x, int n_heads);  // [n, h*d] -> [n, h, d]
Value merge_heads(Value x);               // [n, h, d] -> [n, h*d]

Value embed(Value table, Value tokens);  // [vocab, m], [n] i32 -> [n, m]
Value select_rows(Value x, Value rows);  // [n, ...], [k] i32 -> [k, ...]

Value weight_row(Value weight, int64_t row);  // [k, m] -> [m], one row of a float weight

// Norms over the last axis. Their weights and biases are [m], or one for each element of a row (a
// norm of heads or groups, each with its own weight); optional.
// y = x / sqrt(mean(x^2) + epsilon) * weight. arXiv:1910.07467
Value rms_norm(Value x, Value weight, float epsilon);  // [..., m], [m] -> [..., m]
// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias. arXiv:1607.06450
Value layer_norm(Value x, Value weight, Value bias, float epsilon);
Value l2_norm(Value x, float epsilon);  // y = x / max(sqrt(sum(x^2)), epsilon)

// y = x W^T (+ bias). Quantised weights multiply rows of x rounded to int8, a scale per 32 values.
Value linear(Value x, Value weight, Value bias = {});  // [n, in], [out, in], [out] -> [n, out]
Value head_linear(Value x, Value weight);              // [n, h, in], [h, out, in] -> [n, h, out]
// x rounded for such products; made when a plan is compiled, never by a model. The result is opaque
// words, 40 bytes for every 32 values: codes, scales and sums as the backend likes them.
Value quantize_rows(Value x);  // [n, in] -> [n, 10 * in/32] i32

// cos and sin of every position and pair, once for all layers. `factors` divide the frequencies.
Value rope_table(Value positions, const Rope& rope,
                 Value factors = {});  // [n(, axes)] -> [n, n_rot/2, 2]
// Rotates the leading n_rot elements of each head. arXiv:2104.09864
Value rope(Value x, Value table, const Rope& rope);  // [n, h, d], [n, n_rot/2, 2] -> [n, h, d]

// Writes row i of x to row rows[i] of a cache, in the cache's type. The result stands for the cache
// after the write: what must see it takes it as input.
Value store_rows(Value storage, Value x, Value rows);  // [rows, h*d'], [n, h*d], [n] i32

// softmax(scale * q k^T) v over the keys [first, last) of each token's own sequence, read from the
// rows that `runs` lists. Heads q h/hk share a kv head. sinks: a logit per head joins the softmax.
// Where keys and values are no cache but values of the graph, [n, hk*d], their rows are the piece's
// tokens: an encoder.
// alibi adds -slope_h * (position - key position), arXiv:2108.12409: with m = 2^floor(log2 h),
// slope_h = 2^(-max_bias (h+1) / m) for h < m, else 2^(-max_bias (2 (h-m) + 1) / (2 m)).
// buckets add bias[bucket(key position - position), h], arXiv:1910.10683.
struct AttendInputs {
    Value q;                // [n, h, key_dim]
    Value keys, values;     // storage, after store_rows; no values where they are in the keys
    Value token_begin;      // [s + 1] tokens of each sequence
    Value runs, run_begin;  // [runs, 4], [s + 1]
    Value first, last;      // [n]
    Value sinks;            // [h], optional
    Value positions;        // [n], and with them
    Value key_positions;    // by key of each sequence, one sequence after the other
    Value key_begin;        // [s + 1] into key_positions
    Value bias;             // [buckets, h]
};
// Sets what `how` says of the inputs' presence. -> [n, h, value_dim]
Value attend(const AttendInputs& in, AttendOp how);

// b has the shape of a; or is a vector, [m] or as long as a row, for every row; or has one element
// for each vector of a's last axis, [..., 1], or one for all.
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value row_sum(Value x);                              // [..., m] -> [..., 1]
Value slice(Value x, int64_t begin, int64_t count);  // [..., m] -> [..., count], a copy
// Along the last axis; heads of b may be one that all heads of a share.
Value concat(Value a, Value b);  // [n, h, d], [n, h | 1, e] -> [n, h, d + e]
Value scale(Value x, float factor, float offset = 0.0f);  // factor * x + offset
Value softcap(Value x, float cap);                        // cap * tanh(x / cap)
Value activate(Value x, Activation how);
Value gate(Value g, Value up, Activation how);  // how(g) * up, elementwise
// g' sigmoid(alpha g') (up' + 1), g' = min(g, limit), up' = clamp(up, -limit, limit). gpt-oss.
Value clamped_swiglu(Value g, Value up, float alpha, float limit);

// The n_used experts of largest score, ties to the lower number, in descending order, and their
// weights. `bias` [e] joins the score that chooses, not the weight. arXiv:2412.19437 for groups.
Value route(Value logits, const RouteOp& how,
            Value bias = {});  // [n, e] -> [n, u, 2] i32: expert, f32 bits
// Row (i, j) of the result is x of token i (or of (i, j)) times the matrix of its j-th expert.
Value expert_linear(Value x, Value weight, Value routes,
                    Value bias = {});  // [n, in] | [n, u, in], [e, out, in] -> [n, u, out]
Value combine(Value y, Value routes);  // [n, u, m] -> [n, m], sum of weight * y by rank

// ---- Recurrent layers. Each sequence's tokens are taken in order, from the state in its read row;
// the state after them goes to its write row. Pieces of unequal length are fine. ----
struct States {
    Value storage;      // [rows, elements] f32
    Value read_rows;    // [s]; row 0 is all zeros
    Value write_rows;   // [s]; may be the one that is read
    Value token_begin;  // [s + 1]
};
// y_t = sum_j weight[:, j] x_(t-k+1+j) + bias, by channel; state: the last k-1 x.
Value short_conv(Value x, Value weight, Value bias,
                 const States& states);            // [n, c], [c, k], [c] -> [n, c]
Value token_shift(Value x, const States& states);  // y_t = x_(t-1); [n, m] -> [n, m]; state: x
// Mamba, arXiv:2312.00752. h = exp(dt a) h + dt b x, y = c h + d x; dt is what softplus gave.
struct SelectiveScanInputs {
    Value x, dt;  // [n, c]
    Value a;      // [c, k], negative
    Value b, c;   // [n, k]
    Value d;      // [c]
};
Value selective_scan(const SelectiveScanInputs& in,
                     const States& states);  // -> [n, c]; state [c, k]
// Mamba-2, arXiv:2405.21060: one decay a head, heads h/g share b and c.
struct SsdScanInputs {
    Value x;     // [n, h, p]
    Value dt;    // [n, h]
    Value a, d;  // [h]
    Value b, c;  // [n, g, k]
};
Value ssd_scan(const SsdScanInputs& in, const States& states);  // -> [n, h, p]; state [h, p, k]
// RWKV-6, arXiv:2404.05892. y = r (S + diag(u) k^T v), S = diag(w) S + k^T v; w in (0, 1).
struct Wkv6Inputs {
    Value r, k, v, w;  // [n, h, d]
    Value u;           // [h, d]
};
Value wkv6(const Wkv6Inputs& in, const States& states);  // -> [n, h, d]; state [h, d, d]
// RWKV-7, arXiv:2503.14456. S = S diag(w) + (S a^T) b + v^T k, y = S r^T.
struct Wkv7Inputs {
    Value r, w, k, v, a, b;  // [n, h, d]
};
Value wkv7(const Wkv7Inputs& in, const States& states);  // -> [n, h, d]; state [h, d, d]
// Gated DeltaNet, arXiv:2412.06464. S = exp(g) S; S += k^T beta (v - k S); y = q S. Heads h/hk share
// q and k; these come normalised and scaled.
struct DeltaRuleInputs {
    Value q, k;     // [n, hk, dk]
    Value v;        // [n, h, dv]
    Value g, beta;  // [n, h]
};
Value delta_rule(const DeltaRuleInputs& in,
                 const States& states);  // -> [n, h, dv]; state [h, dk, dv]

// Applies the rotary function of deltas[i] positions to stored keys, its magnitude included.
Value rotate_rows(Value storage, Value rows, Value deltas, const RotateRowsOp& how,
                  Value factors = {});
Value copy_rows(Value storage, Value from, Value to);  // row to[i] = row from[i], in order

Value edit(Value x, uint16_t index);  // [n, ...] -> [n, ...], whatever the caller makes of it

}  // namespace plait
