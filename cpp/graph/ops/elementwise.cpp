#include "graph/ops/elementwise.h"

#include "graph/ops/shapes.h"

namespace plait {
namespace {

void check_binary(Value a, Value b) {
    const int64_t n = b.shape().elements();
    const bool by_vector =
        b.shape()[-1] == 1 && n * a.shape()[-1] * a.shape()[0] == a.shape().elements();
    PLAIT_CHECK(a.shape() == b.shape() || with_last(a.shape(), 1) == b.shape() ||
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

}  // namespace plait
