#include "graph/ops.h"

#include <array>

#include "base/error.h"

namespace plait {
namespace {

TensorType floats(Shape shape) { return {DType::f32, shape}; }

// The shape of `x` with its last axis replaced.
Shape with_last(const Shape& x, int64_t size) {
    Shape shape = x;
    shape.dims[static_cast<size_t>(x.rank - 1)] = size;
    return shape;
}

Value unary(Value x, Op op) {
    return x.graph->add(std::move(op), floats(x.shape()), x.extent(), std::array{x});
}

// Whether one of w is for one of x's last axis, or for one of a whole row.
bool repeats_in(const Value& w, const Value& x) {
    const int64_t n = w.shape().elements();
    return n == x.shape()[-1] || n * x.shape()[0] == x.shape().elements();
}

Value binary(Value a, Value b, Op op) {
    PLAIT_CHECK(a.shape() == b.shape() || with_last(a.shape(), 1) == b.shape() ||
                (b.extent() == Extent::fixed && (repeats_in(b, a) || b.shape().elements() == 1)));
    return a.graph->add(std::move(op), floats(a.shape()), a.extent(), std::array{a, b});
}

}  // namespace

Value reshape(Value x, Shape shape) {
    PLAIT_CHECK(x.shape().elements() == shape.elements() && x.shape()[0] == shape[0]);
    return x.graph->add(ReshapeOp{}, {x.type().dtype, shape}, x.extent(), std::array{x});
}

Value split_heads(Value x, int n_heads) {
    PLAIT_CHECK(x.shape().rank == 2 && x.shape()[1] % n_heads == 0);
    return reshape(x, {x.shape()[0], n_heads, x.shape()[1] / n_heads});
}

Value merge_heads(Value x) {
    PLAIT_CHECK(x.shape().rank == 3);
    return reshape(x, {x.shape()[0], x.shape()[1] * x.shape()[2]});
}

Value embed(Value table, Value tokens) {
    PLAIT_CHECK(table.shape().rank == 2 && tokens.type().dtype == DType::i32);
    return table.graph->add(EmbedOp{}, floats({tokens.shape()[0], table.shape()[1]}),
                            tokens.extent(), std::array{table, tokens});
}

Value select_rows(Value x, Value rows) {
    PLAIT_CHECK(x.type().dtype == DType::f32 && rows.type().dtype == DType::i32);
    Shape shape = x.shape();
    shape.dims[0] = rows.shape()[0];
    return x.graph->add(SelectRowsOp{}, floats(shape), rows.extent(), std::array{x, rows});
}

Value weight_row(Value weight, int64_t row) {
    PLAIT_CHECK(weight.shape().rank == 2 && row >= 0 && row < weight.shape()[0]);
    return weight.graph->add(WeightRowOp{row}, floats({weight.shape()[1]}), Extent::fixed,
                             std::array{weight});
}

Value rms_norm(Value x, Value weight, float epsilon) {
    if (!weight) return unary(x, RmsNormOp{epsilon});
    PLAIT_CHECK(repeats_in(weight, x));
    return x.graph->add(RmsNormOp{epsilon}, floats(x.shape()), x.extent(), std::array{x, weight});
}

Value layer_norm(Value x, Value weight, Value bias, float epsilon) {
    PLAIT_CHECK(weight || !bias);
    if (!weight) return unary(x, LayerNormOp{epsilon});
    PLAIT_CHECK(repeats_in(weight, x));
    std::vector<Value> inputs{x, weight};
    if (bias) {
        PLAIT_CHECK(bias.shape().elements() == weight.shape().elements());
        inputs.push_back(bias);
    }
    return x.graph->add(LayerNormOp{epsilon}, floats(x.shape()), x.extent(), inputs);
}

Value l2_norm(Value x, float epsilon) { return unary(x, L2NormOp{epsilon}); }

Value linear(Value x, Value weight, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 2 && x.shape().rank == 2);
    PLAIT_CHECK(x.shape()[1] == weight.shape()[1]);
    const TensorType type = floats({x.shape()[0], weight.shape()[0]});
    if (!bias) return x.graph->add(LinearOp{}, type, x.extent(), std::array{x, weight});
    PLAIT_CHECK(bias.shape().elements() == weight.shape()[0]);
    return x.graph->add(LinearOp{}, type, x.extent(), std::array{x, weight, bias});
}

Value head_linear(Value x, Value weight) {
    const Shape& w = weight.shape();
    PLAIT_CHECK(w.rank == 3 && x.shape().rank == 3 && x.shape()[1] == w[0] && x.shape()[2] == w[2]);
    return x.graph->add(HeadLinearOp{}, floats({x.shape()[0], w[0], w[1]}), x.extent(),
                        std::array{x, weight});
}

Value quantize_rows(Value x) {
    PLAIT_CHECK(x.shape()[-1] % 32 == 0);
    const TensorType type{DType::i32, with_last(x.shape(), x.shape()[-1] / 32 * 10)};
    return x.graph->add(QuantizeRowsOp{}, type, x.extent(), std::array{x});
}

Value rope_table(Value positions, const Rope& rope, Value factors) {
    PLAIT_CHECK(rope.n_rot > 0 && rope.n_rot % 2 == 0);
    const TensorType type = floats({positions.shape()[0], rope.n_rot / 2, 2});
    if (!factors)
        return positions.graph->add(RopeTableOp{rope}, type, positions.extent(),
                                    std::array{positions});
    PLAIT_CHECK(factors.shape().elements() == rope.n_rot / 2);
    return positions.graph->add(RopeTableOp{rope}, type, positions.extent(),
                                std::array{positions, factors});
}

Value rope(Value x, Value table, const Rope& rope) {
    PLAIT_CHECK(x.shape().rank == 3 && rope.n_rot <= x.shape()[2]);
    PLAIT_CHECK(table.shape()[1] == rope.n_rot / 2);
    return x.graph->add(RopeOp{rope.n_rot, rope.interleaved}, floats(x.shape()), x.extent(),
                        std::array{x, table});
}

Value store_rows(Value storage, Value x, Value rows) {
    PLAIT_CHECK(storage.shape().rank == 2 && rows.type().dtype == DType::i32);
    return x.graph->add(StoreRowsOp{}, storage.type(), Extent::fixed, std::array{storage, x, rows});
}

Value attend(const AttendInputs& in, AttendOp how) {
    PLAIT_CHECK(in.q.shape() == Shape({in.q.shape()[0], how.n_heads, how.key_dim}));
    PLAIT_CHECK(how.n_kv_heads > 0 && how.n_heads % how.n_kv_heads == 0);
    how.values_in_keys = !in.values;
    how.sinks = static_cast<bool>(in.sinks);
    PLAIT_CHECK((how.bias == PositionBias::buckets) == static_cast<bool>(in.bias));
    std::vector<Value> inputs{in.q, in.keys};
    if (in.values) inputs.push_back(in.values);
    inputs.insert(inputs.end(), {in.token_begin, in.runs, in.run_begin, in.first, in.last});
    if (in.sinks) inputs.push_back(in.sinks);
    if (how.bias != PositionBias::none)
        inputs.insert(inputs.end(), {in.positions, in.key_positions, in.key_begin});
    if (in.bias) inputs.push_back(in.bias);
    const TensorType type = floats({in.q.shape()[0], how.n_heads, how.value_dim});
    return in.q.graph->add(how, type, in.q.extent(), inputs);
}

Value operator+(Value a, Value b) { return binary(a, b, AddOp{}); }
Value operator*(Value a, Value b) { return binary(a, b, MulOp{}); }
Value operator-(Value a, Value b) { return binary(a, b, SubOp{}); }

Value row_sum(Value x) {
    return x.graph->add(RowSumOp{}, floats(with_last(x.shape(), 1)), x.extent(), std::array{x});
}

Value slice(Value x, int64_t begin, int64_t count) {
    PLAIT_CHECK(begin >= 0 && count > 0 && begin + count <= x.shape()[-1]);
    return x.graph->add(SliceOp{begin}, floats(with_last(x.shape(), count)), x.extent(),
                        std::array{x});
}

Value concat(Value a, Value b) {
    PLAIT_CHECK(a.shape().rank == b.shape().rank && a.shape()[0] == b.shape()[0]);
    PLAIT_CHECK(a.shape().rank == 2 || b.shape()[1] == a.shape()[1] || b.shape()[1] == 1);
    return a.graph->add(ConcatOp{}, floats(with_last(a.shape(), a.shape()[-1] + b.shape()[-1])),
                        a.extent(), std::array{a, b});
}

Value scale(Value x, float factor, float offset) { return unary(x, ScaleOp{factor, offset}); }
Value softcap(Value x, float cap) { return unary(x, SoftcapOp{cap}); }
Value activate(Value x, Activation how) { return unary(x, ActivateOp{how}); }

Value gate(Value g, Value up, Activation how) {
    PLAIT_CHECK(g.shape() == up.shape());
    return g.graph->add(GateOp{how}, floats(g.shape()), g.extent(), std::array{g, up});
}

Value clamped_swiglu(Value g, Value up, float alpha, float limit) {
    PLAIT_CHECK(g.shape() == up.shape());
    return g.graph->add(ClampedSwigluOp{alpha, limit}, floats(g.shape()), g.extent(),
                        std::array{g, up});
}

Value route(Value logits, const RouteOp& how, Value bias) {
    const int64_t n_experts = logits.shape()[1];
    PLAIT_CHECK(logits.shape().rank == 2 && how.n_used >= 1 && how.n_used <= n_experts);
    PLAIT_CHECK(how.n_groups >= 1 && n_experts % how.n_groups == 0);
    PLAIT_CHECK(how.n_groups_used >= 1 && how.n_groups_used <= how.n_groups);
    PLAIT_CHECK(n_experts / how.n_groups * how.n_groups_used >= how.n_used);
    PLAIT_CHECK(!bias || bias.shape().elements() == n_experts);
    std::vector<Value> inputs{logits};
    if (bias) inputs.push_back(bias);
    return logits.graph->add(how, {DType::i32, {logits.shape()[0], how.n_used, 2}}, logits.extent(),
                             inputs);
}

Value expert_linear(Value x, Value weight, Value routes, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 3 && x.shape()[-1] == weight.shape()[2]);
    PLAIT_CHECK(x.shape().rank == 2 || x.shape()[1] == routes.shape()[1]);
    const TensorType type = floats({x.shape()[0], routes.shape()[1], weight.shape()[1]});
    std::vector<Value> inputs{x, weight, routes};
    if (bias) inputs.push_back(bias);
    return x.graph->add(ExpertLinearOp{}, type, x.extent(), inputs);
}

Value combine(Value y, Value routes) {
    PLAIT_CHECK(y.shape().rank == 3 && y.shape()[1] == routes.shape()[1]);
    return y.graph->add(CombineOp{}, floats({y.shape()[0], y.shape()[2]}), y.extent(),
                        std::array{y, routes});
}

namespace {

// A node of `inputs` that goes on from `states`, which come last among its inputs.
Value recurrent(Op op, TensorType type, std::vector<Value> inputs, const States& states,
                int64_t state_elements) {
    PLAIT_CHECK(states.storage.shape()[1] == state_elements);
    inputs.insert(inputs.end(),
                  {states.storage, states.read_rows, states.write_rows, states.token_begin});
    const Value& x = inputs[0];
    return x.graph->add(std::move(op), type, x.extent(), inputs);
}

}  // namespace

Value short_conv(Value x, Value weight, Value bias, const States& states) {
    const int64_t channels = x.shape()[1];
    PLAIT_CHECK(weight.shape().rank == 2 && weight.shape()[0] == channels);
    std::vector<Value> inputs{x, weight};
    if (bias) inputs.push_back(bias);
    return recurrent(ShortConvOp{}, x.type(), inputs, states, channels * (weight.shape()[1] - 1));
}

Value token_shift(Value x, const States& states) {
    return recurrent(TokenShiftOp{}, x.type(), {x}, states, x.shape()[1]);
}

Value selective_scan(const SelectiveScanInputs& in, const States& states) {
    PLAIT_CHECK(in.x.shape() == in.dt.shape() && in.b.shape() == in.c.shape());
    PLAIT_CHECK(in.a.shape() == Shape({in.x.shape()[1], in.b.shape()[1]}));
    return recurrent(SelectiveScanOp{}, in.x.type(), {in.x, in.dt, in.a, in.b, in.c, in.d}, states,
                     in.a.shape().elements());
}

Value ssd_scan(const SsdScanInputs& in, const States& states) {
    const Shape& x = in.x.shape();
    PLAIT_CHECK(x.rank == 3 && in.dt.shape() == Shape({x[0], x[1]}));
    PLAIT_CHECK(in.a.shape().elements() == x[1] && in.d.shape().elements() == x[1]);
    PLAIT_CHECK(in.b.shape() == in.c.shape() && x[1] % in.b.shape()[1] == 0);
    return recurrent(SsdScanOp{}, in.x.type(), {in.x, in.dt, in.a, in.b, in.c, in.d}, states,
                     x[1] * x[2] * in.b.shape()[2]);
}

Value wkv6(const Wkv6Inputs& in, const States& states) {
    const Shape& r = in.r.shape();
    PLAIT_CHECK(r.rank == 3 && r == in.k.shape() && r == in.v.shape() && r == in.w.shape());
    PLAIT_CHECK(in.u.shape().elements() == r[1] * r[2]);
    return recurrent(Wkv6Op{}, in.r.type(), {in.r, in.k, in.v, in.w, in.u}, states,
                     r[1] * r[2] * r[2]);
}

Value wkv7(const Wkv7Inputs& in, const States& states) {
    const Shape& r = in.r.shape();
    PLAIT_CHECK(r.rank == 3 && r == in.w.shape() && r == in.k.shape() && r == in.v.shape());
    PLAIT_CHECK(r == in.a.shape() && r == in.b.shape());
    return recurrent(Wkv7Op{}, in.r.type(), {in.r, in.w, in.k, in.v, in.a, in.b}, states,
                     r[1] * r[2] * r[2]);
}

Value delta_rule(const DeltaRuleInputs& in, const States& states) {
    const Shape& k = in.k.shape();
    const Shape& v = in.v.shape();
    PLAIT_CHECK(k.rank == 3 && v.rank == 3 && k == in.q.shape() && v[1] % k[1] == 0);
    PLAIT_CHECK(in.g.shape() == Shape({v[0], v[1]}) && in.g.shape() == in.beta.shape());
    const std::vector<Value> inputs{in.q, in.k, in.v, in.g, in.beta};
    return recurrent(DeltaRuleOp{}, in.v.type(), inputs, states, v[1] * k[2] * v[2]);
}

Value rotate_rows(Value storage, Value rows, Value deltas, const RotateRowsOp& how, Value factors) {
    PLAIT_CHECK(how.begin >= 0 && how.begin + how.rope.n_rot <= how.head_dim);
    std::vector<Value> inputs{storage, rows, deltas};
    if (factors) inputs.push_back(factors);
    return storage.graph->add(how, storage.type(), Extent::fixed, inputs);
}

Value copy_rows(Value storage, Value from, Value to) {
    return storage.graph->add(CopyRowsOp{}, storage.type(), Extent::fixed,
                              std::array{storage, from, to});
}

Value edit(Value x, uint16_t index) { return unary(x, EditOp{index}); }

}  // namespace plait
