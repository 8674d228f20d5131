#include "graph/ops/recurrence.h"

#include "graph/ops/shapes.h"

namespace plait {
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
