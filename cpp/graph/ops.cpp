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

Value binary(Value a, Value b, Op op) {
    const bool same = a.shape() == b.shape();
    PLAIT_CHECK(same || (b.shape().rank == 1 && b.shape()[0] == a.shape()[-1]));
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
    PLAIT_CHECK(x.shape().rank == 2 && rows.type().dtype == DType::i32);
    return x.graph->add(SelectRowsOp{}, floats({rows.shape()[0], x.shape()[1]}), rows.extent(),
                        std::array{x, rows});
}

Value rms_norm(Value x, Value weight, float epsilon) {
    if (!weight) return unary(x, RmsNormOp{epsilon});
    PLAIT_CHECK(weight.shape().elements() == x.shape()[-1]);
    return x.graph->add(RmsNormOp{epsilon}, floats(x.shape()), x.extent(), std::array{x, weight});
}

Value linear(Value x, Value weight, Value bias) {
    PLAIT_CHECK(weight.shape().rank == 2 && x.shape().rank == 2);
    PLAIT_CHECK(x.shape()[1] == weight.shape()[1]);
    const TensorType type = floats({x.shape()[0], weight.shape()[0]});
    if (!bias) return x.graph->add(LinearOp{}, type, x.extent(), std::array{x, weight});
    PLAIT_CHECK(bias.shape().elements() == weight.shape()[0]);
    return x.graph->add(LinearOp{}, type, x.extent(), std::array{x, weight, bias});
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
        return positions.graph->add(RopeTableOp{rope}, type, positions.extent(), std::array{positions});
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

Value attend(const AttendInputs& in, const AttendOp& how) {
    PLAIT_CHECK(in.q.shape() == Shape({in.q.shape()[0], how.n_heads, how.key_dim}));
    PLAIT_CHECK(how.n_kv_heads > 0 && how.n_heads % how.n_kv_heads == 0);
    const TensorType type = floats({in.q.shape()[0], how.n_heads, how.value_dim});
    std::vector<Value> inputs{in.q, in.keys, in.values, in.token_begin, in.runs,
                              in.run_begin, in.first, in.last};
    if (in.sinks) inputs.push_back(in.sinks);
    return in.q.graph->add(how, type, in.q.extent(), inputs);
}

Value operator+(Value a, Value b) { return binary(a, b, AddOp{}); }
Value operator*(Value a, Value b) { return binary(a, b, MulOp{}); }
Value scale(Value x, float factor) { return unary(x, ScaleOp{factor}); }
Value softcap(Value x, float cap) { return unary(x, SoftcapOp{cap}); }
Value activate(Value x, Activation how) { return unary(x, ActivateOp{how}); }

Value gate(Value g, Value up, Activation how) {
    PLAIT_CHECK(g.shape() == up.shape());
    return g.graph->add(GateOp{how}, floats(g.shape()), g.extent(), std::array{g, up});
}

Value route(Value logits, const RouteOp& how) {
    PLAIT_CHECK(logits.shape().rank == 2 && how.n_used >= 1 && how.n_used <= logits.shape()[1]);
    return logits.graph->add(how, {DType::i32, {logits.shape()[0], how.n_used, 2}}, logits.extent(),
                             std::array{logits});
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

Value rotate_rows(Value storage, Value rows, Value deltas, const Rope& rope, int n_heads,
                  int head_dim, Value factors) {
    std::vector<Value> inputs{storage, rows, deltas};
    if (factors) inputs.push_back(factors);
    return storage.graph->add(RotateRowsOp{rope, n_heads, head_dim}, storage.type(), Extent::fixed,
                              inputs);
}

Value copy_rows(Value storage, Value from, Value to) {
    return storage.graph->add(CopyRowsOp{}, storage.type(), Extent::fixed,
                              std::array{storage, from, to});
}

}  // namespace plait
