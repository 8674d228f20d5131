#include "graph/ops.h"

#include <bit>

#include "base/error.h"
#include "tensor/blocks/hadamard.h"

namespace plait {
namespace {

TensorType floats(const Shape& shape) { return {DType::f32, shape}; }

// The shape of `x` with another size of the last axis.
Shape with_last(const Shape& x, int64_t size) {
    Shape shape = x;
    shape.dims[static_cast<size_t>(x.rank - 1)] = size;
    return shape;
}

// Returns true if w has one element for each element of x's last axis, or for each element of a
// row.
bool repeats_in(Value w, Value x) {
    const int64_t n = w.shape().elements();
    return n == x.shape()[-1] || n * x.shape()[0] == x.shape().elements();
}

// Appends an op whose result has the shape and the extent of `x`.
Value add_like(Value x, const Op& op) { return x.graph->add(op, floats(x.shape()), x.extent()); }

}  // namespace

// -- ops/sources.h

Value reshape(Value x, Shape shape) {
    PLAIT_CHECK(x.shape().elements() == shape.elements() && x.shape()[0] == shape[0]);
    return x.graph->add(ops::Reshape{x}, {x.type().dtype, shape}, x.extent());
}

Value split_heads(Value x, int n_heads) {
    PLAIT_CHECK(x.shape().rank == 2 && x.shape()[1] % n_heads == 0);
    return reshape(x, {x.shape()[0], n_heads, x.shape()[1] / n_heads});
}

Value merge_heads(Value x) {
    PLAIT_CHECK(x.shape().rank == 3);
    return reshape(x, {x.shape()[0], x.shape()[1] * x.shape()[2]});
}

Value weight_row(Value weight, int64_t row) {
    PLAIT_CHECK(weight.shape().rank == 2 && row >= 0 && row < weight.shape()[0]);
    return weight.graph->add(ops::WeightRow{weight, row}, floats({weight.shape()[1]}),
                             Extent::fixed);
}

Value edit(Value x, uint16_t index) {
    return x.graph->add(ops::Edit{x, index}, x.type(), x.extent());
}

// -- ops/rows.h

Value embed(Value table, Value tokens) {
    PLAIT_CHECK(table.shape().rank == 2 && tokens.type().dtype == DType::i32);
    return table.graph->add(ops::Embed{table, tokens},
                            floats({tokens.shape()[0], table.shape()[1]}), tokens.extent());
}

Value select_rows(Value x, Value rows, Value begin) {
    PLAIT_CHECK(x.type().dtype == DType::f32 && rows.type().dtype == DType::i32);
    PLAIT_CHECK(!begin || begin.type().dtype == DType::i32);
    Shape shape = x.shape();
    shape.dims[0] = rows.shape()[0];
    return x.graph->add(ops::SelectRows{x, rows, begin}, floats(shape), rows.extent());
}

Value store_rows(Value storage, Value x, Value rows) {
    PLAIT_CHECK(storage.shape().rank == 2 && rows.type().dtype == DType::i32);
    return x.graph->add(ops::StoreRows{storage, x, rows}, storage.type(), Extent::fixed);
}

Value copy_rows(Value storage, Value from, Value to) {
    return storage.graph->add(ops::CopyRows{storage, from, to}, storage.type(), Extent::fixed);
}

Value edit_rows(Value x, Value rows, Value picks) {
    PLAIT_CHECK(rows.shape().rank == 1 || rows.shape() == x.shape());
    PLAIT_CHECK((rows.extent() == Extent::fixed) == (rows.shape().rank == 1));
    PLAIT_CHECK(picks.type().dtype == DType::i32 && picks.shape().rank == 2);
    PLAIT_CHECK(picks.shape()[0] == x.shape()[0] && picks.shape()[1] == 2);
    return add_like(x, ops::EditRows{x, rows, picks});
}

// -- ops/norm.h

Value rms_norm(Value x, Value weight, float epsilon) {
    PLAIT_CHECK(!weight || repeats_in(weight, x));
    return add_like(x, ops::RmsNorm{x, weight, epsilon});
}

Value layer_norm(Value x, Value weight, Value bias, float epsilon) {
    PLAIT_CHECK(weight ? repeats_in(weight, x) : !bias);
    PLAIT_CHECK(!bias || bias.shape().elements() == weight.shape().elements());
    return add_like(x, ops::LayerNorm{x, weight, bias, epsilon});
}

Value l2_norm(Value x, float epsilon) { return add_like(x, ops::L2Norm{x, epsilon}); }

Value row_sum(Value x) {
    return x.graph->add(ops::RowSum{x}, floats(with_last(x.shape(), 1)), x.extent());
}

// -- ops/linear.h

Value linear(Value x, Value weight, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 2 && x.shape().rank == 2);
    PLAIT_CHECK(x.shape()[1] == weight.shape()[1]);
    PLAIT_CHECK(!bias || bias.shape().elements() == weight.shape()[0]);
    return x.graph->add(ops::Linear{x, weight, bias}, floats({x.shape()[0], weight.shape()[0]}),
                        x.extent());
}

Value head_linear(Value x, Value weight) {
    const Shape& w = weight.shape();
    PLAIT_CHECK(w.rank == 3 && x.shape().rank == 3 && x.shape()[1] == w[0] && x.shape()[2] == w[2]);
    return x.graph->add(ops::HeadLinear{x, weight}, floats({x.shape()[0], w[0], w[1]}), x.extent());
}

Value mix(Value x, Value weights) {
    const Shape& w = weights.shape();
    PLAIT_CHECK(w.rank == 3 && x.shape().rank == 3 && x.shape()[0] == w[0] && x.shape()[1] == w[2]);
    return x.graph->add(ops::Mix{x, weights}, floats({w[0], w[1], x.shape()[2]}), x.extent());
}

// -- ops/rotary.h

Value rope_table(Value positions, const Rope& rope, Value factors) {
    PLAIT_CHECK(rope.n_rot > 0 && rope.n_rot % 2 == 0);
    PLAIT_CHECK(!factors || factors.shape().elements() == rope.n_rot / 2);
    return positions.graph->add(ops::RopeTable{positions, factors, rope},
                                floats({positions.shape()[0], rope.n_rot / 2, 2}),
                                positions.extent());
}

Value rope(Value x, Value table, const Rope& rope) {
    PLAIT_CHECK(x.shape().rank == 3 && rope.n_rot <= x.shape()[2]);
    PLAIT_CHECK(table.shape()[1] == rope.n_rot / 2);
    return add_like(x, ops::Rope{x, table, rope.n_rot, rope.interleaved});
}

namespace {

// True if kernels can transform blocks of this many elements.
bool is_hadamard(int block) {
    return std::has_single_bit(static_cast<unsigned>(block)) && block >= kMinHadamard &&
           block <= kMaxHadamard;
}

}  // namespace

Value hadamard(Value x, int block) {
    PLAIT_CHECK(x.shape().rank == 3 && is_hadamard(block) && x.shape()[2] % block == 0);
    return add_like(x, ops::Hadamard{x, block});
}

Value rotate_rows(Value storage, Value rows, Value deltas, const StoredHeads& heads,
                  Value factors) {
    PLAIT_CHECK(heads.begin >= 0 && heads.begin + heads.rope.n_rot <= heads.head_dim);
    PLAIT_CHECK(heads.hadamard == 0 ||
                (is_hadamard(heads.hadamard) && heads.head_dim % heads.hadamard == 0));
    return storage.graph->add(ops::RotateRows{storage, rows, deltas, factors, heads},
                              storage.type(), Extent::fixed);
}

// -- ops/attention.h

Value attend(const AttendInputs& in, const AttendParams& params) {
    PLAIT_CHECK(in.q.shape() == Shape({in.q.shape()[0], params.n_heads, params.key_dim}));
    PLAIT_CHECK(params.n_kv_heads > 0 && params.n_heads % params.n_kv_heads == 0);
    const bool by_position = params.bias != PositionBias::none;
    PLAIT_CHECK(by_position == static_cast<bool>(in.positions));
    PLAIT_CHECK(by_position == static_cast<bool>(in.key_positions));
    PLAIT_CHECK(by_position == static_cast<bool>(in.key_begin));
    PLAIT_CHECK((params.bias == PositionBias::buckets) == static_cast<bool>(in.bias));
    const ops::Attend op{.q = in.q,
                         .keys = in.keys,
                         .values = in.values,
                         .token_begin = in.token_begin,
                         .runs = in.runs,
                         .run_begin = in.run_begin,
                         .first = in.first,
                         .last = in.last,
                         .sinks = in.sinks,
                         .positions = in.positions,
                         .key_positions = in.key_positions,
                         .key_begin = in.key_begin,
                         .bias = in.bias,
                         .params = params};
    return in.q.graph->add(op, floats({in.q.shape()[0], params.n_heads, params.value_dim}),
                           in.q.extent());
}

Value temperature(Value positions, const Temperature& how) {
    PLAIT_CHECK(positions.shape().rank == 1 && how.length > 0 && how.length <= INT32_MAX);
    PLAIT_CHECK(how.offset >= 0);
    return positions.graph->add(ops::Temperature{positions, how}, floats({positions.shape()[0], 1}),
                                positions.extent());
}

// -- ops/elementwise.h

namespace {

void check_binary(Value a, Value b) {
    const int64_t n = b.shape().elements();
    const bool by_vector =
        b.shape()[-1] == 1 && n * a.shape()[-1] * a.shape()[0] == a.shape().elements();
    const bool by_row = b.extent() == a.extent() && b.shape() == Shape{a.shape()[0], 1};
    PLAIT_CHECK(a.shape() == b.shape() || with_last(a.shape(), 1) == b.shape() || by_row ||
                (b.extent() == Extent::fixed && (repeats_in(b, a) || by_vector || n == 1)));
}

}  // namespace

Value operator+(Value a, Value b) {
    check_binary(a, b);
    return add_like(a, ops::Add{a, b});
}

Value operator-(Value a, Value b) {
    check_binary(a, b);
    return add_like(a, ops::Sub{a, b});
}

Value operator*(Value a, Value b) {
    check_binary(a, b);
    return add_like(a, ops::Mul{a, b});
}

Value scale(Value x, float factor, float offset) {
    return add_like(x, ops::Scale{x, factor, offset});
}

Value softcap(Value x, float cap) { return add_like(x, ops::Softcap{x, cap}); }

Value clamp(Value x, float limit) {
    PLAIT_CHECK(limit > 0.0f);
    return add_like(x, ops::Clamp{x, limit});
}

Value activate(Value x, Activation activation) { return add_like(x, ops::Activate{x, activation}); }

Value gate(Value g, Value up, Activation activation) {
    PLAIT_CHECK(g.shape() == up.shape());
    return add_like(g, ops::Gate{g, up, activation});
}

Value clamped_swiglu(Value g, Value up, float alpha, float limit) {
    PLAIT_CHECK(g.shape() == up.shape());
    return add_like(g, ops::ClampedSwiglu{g, up, alpha, limit});
}

Value slice(Value x, int64_t begin, int64_t count) {
    PLAIT_CHECK(begin >= 0 && count > 0 && begin + count <= x.shape()[-1]);
    return x.graph->add(ops::Slice{x, begin}, floats(with_last(x.shape(), count)), x.extent());
}

Value concat(Value a, Value b) {
    PLAIT_CHECK(a.shape().rank == b.shape().rank && a.shape()[0] == b.shape()[0]);
    PLAIT_CHECK(a.shape().rank == 2 || b.shape()[1] == a.shape()[1] || b.shape()[1] == 1);
    return a.graph->add(ops::Concat{a, b},
                        floats(with_last(a.shape(), a.shape()[-1] + b.shape()[-1])), a.extent());
}

// -- ops/routing.h

Value route(Value logits, const RouteParams& params, Value bias, Value expert_scale) {
    const int64_t n_experts = logits.shape()[1];
    PLAIT_CHECK(logits.shape().rank == 2 && params.n_used >= 1 && params.n_used <= n_experts);
    PLAIT_CHECK(params.n_groups >= 1 && n_experts % params.n_groups == 0);
    PLAIT_CHECK(params.n_groups_used >= 1 && params.n_groups_used <= params.n_groups);
    PLAIT_CHECK(n_experts / params.n_groups * params.n_groups_used >= params.n_used);
    PLAIT_CHECK(params.group_best == 1 || params.group_best == 2);
    PLAIT_CHECK(!bias || bias.shape().elements() == n_experts);
    PLAIT_CHECK(!expert_scale || expert_scale.shape().elements() == n_experts);
    return logits.graph->add(ops::Route{logits, bias, expert_scale, params},
                             {DType::i32, {logits.shape()[0], params.n_used, 2}}, logits.extent());
}

Value expert_linear(Value x, Value weight, Value routes, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 3 && x.shape()[-1] == weight.shape()[2]);
    PLAIT_CHECK(x.shape().rank == 2 || x.shape()[1] == routes.shape()[1]);
    return x.graph->add(ops::ExpertLinear{x, weight, routes, bias},
                        floats({x.shape()[0], routes.shape()[1], weight.shape()[1]}), x.extent());
}

Value combine(Value y, Value routes) {
    PLAIT_CHECK(y.shape().rank == 3 && y.shape()[1] == routes.shape()[1]);
    return y.graph->add(ops::Combine{y, routes}, floats({y.shape()[0], y.shape()[2]}), y.extent());
}

// -- ops/recurrence.h

namespace {

// Appends a recurrent op whose result has the shape of `like`, if its state has that many elements.
Value add_recurrent(Value like, const Op& op, const States& states, int64_t state_elements) {
    PLAIT_CHECK(states.storage.shape()[1] == state_elements);
    return like.graph->add(op, like.type(), like.extent());
}

ops::States operands_of(const States& states) {
    return {states.storage, states.read_rows, states.write_rows, states.token_begin};
}

}  // namespace

Value short_conv(Value x, Value weight, Value bias, const States& states) {
    const int64_t channels = x.shape()[1];
    PLAIT_CHECK(weight.shape().rank == 2 && weight.shape()[0] == channels);
    return add_recurrent(x, ops::ShortConv{x, weight, bias, operands_of(states)}, states,
                         channels * (weight.shape()[1] - 1));
}

Value token_shift(Value x, const States& states) {
    return add_recurrent(x, ops::TokenShift{x, operands_of(states)}, states, x.shape()[1]);
}

Value selective_scan(const SelectiveScanInputs& in, const States& states) {
    PLAIT_CHECK(in.x.shape() == in.dt.shape() && in.b.shape() == in.c.shape());
    PLAIT_CHECK(in.a.shape() == Shape({in.x.shape()[1], in.b.shape()[1]}));
    const ops::SelectiveScan op{in.x, in.dt, in.a, in.b, in.c, in.d, operands_of(states)};
    return add_recurrent(in.x, op, states, in.a.shape().elements());
}

Value ssd_scan(const SsdScanInputs& in, const States& states) {
    const Shape& x = in.x.shape();
    PLAIT_CHECK(x.rank == 3 && in.dt.shape() == Shape({x[0], x[1]}));
    PLAIT_CHECK(in.a.shape().elements() == x[1] && in.d.shape().elements() == x[1]);
    PLAIT_CHECK(in.b.shape() == in.c.shape() && x[1] % in.b.shape()[1] == 0);
    const ops::SsdScan op{in.x, in.dt, in.a, in.b, in.c, in.d, operands_of(states)};
    return add_recurrent(in.x, op, states, x[1] * x[2] * in.b.shape()[2]);
}

Value wkv6(const Wkv6Inputs& in, const States& states) {
    const Shape& r = in.r.shape();
    PLAIT_CHECK(r.rank == 3 && r == in.k.shape() && r == in.v.shape() && r == in.w.shape());
    PLAIT_CHECK(in.u.shape().elements() == r[1] * r[2]);
    const ops::Wkv6 op{in.r, in.k, in.v, in.w, in.u, operands_of(states)};
    return add_recurrent(in.r, op, states, r[1] * r[2] * r[2]);
}

Value wkv7(const Wkv7Inputs& in, const States& states) {
    const Shape& r = in.r.shape();
    PLAIT_CHECK(r.rank == 3 && r == in.w.shape() && r == in.k.shape() && r == in.v.shape());
    PLAIT_CHECK(r == in.a.shape() && r == in.b.shape());
    const ops::Wkv7 op{in.r, in.w, in.k, in.v, in.a, in.b, operands_of(states)};
    return add_recurrent(in.r, op, states, r[1] * r[2] * r[2]);
}

Value delta_rule(const DeltaRuleInputs& in, const States& states) {
    const Shape& k = in.k.shape();
    const Shape& v = in.v.shape();
    PLAIT_CHECK(k.rank == 3 && v.rank == 3 && k == in.q.shape() && v[1] % k[1] == 0);
    PLAIT_CHECK(in.g.shape() == Shape({v[0], v[1]}) && in.g.shape() == in.beta.shape());
    const ops::DeltaRule op{in.q, in.k, in.v, in.g, in.beta, operands_of(states), in.tiled};
    return add_recurrent(in.v, op, states, v[1] * k[2] * v[2]);
}

}  // namespace plait
