// Checks of operands and types of results that builder functions share.
#pragma once

#include "base/error.h"
#include "graph/graph.h"

namespace plait {

inline TensorType floats(const Shape& shape) { return {DType::f32, shape}; }

// The shape of `x` with another size of the last axis.
inline Shape with_last(const Shape& x, int64_t size) {
    Shape shape = x;
    shape.dims[static_cast<size_t>(x.rank - 1)] = size;
    return shape;
}

// Whether w has one element for each element of x's last axis, or for each element of a row.
inline bool repeats_in(Value w, Value x) {
    const int64_t n = w.shape().elements();
    return n == x.shape()[-1] || n * x.shape()[0] == x.shape().elements();
}

// Appends an op whose result has the shape and the extent of `x`.
inline Value add_like(Value x, const Op& op) {
    return x.graph->add(op, floats(x.shape()), x.extent());
}

}  // namespace plait
