// Arguments of elementwise kernels from nodes.
#pragma once

#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

inline ElementwiseArgs elementwise(const Node& node, Binder& binder) {
    ElementwiseArgs args{};
    args.a = operand(node.inputs[0], binder);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.row_elements = row_elements(node.type);
    if (node.inputs.size() < 2) return args;
    args.b = operand(node.inputs[1], binder);
    const Shape& b = binder.type(node.inputs[1]).shape;
    const Shape& a = node.type.shape;
    if (b == a) return args;
    if (b.elements() == 1)
        args.share = INT64_MAX;
    else if (b[-1] == 1 && b.elements() * a[-1] == a.elements())
        args.share = a[-1];
    else
        args.width = b.elements();
    return args;
}

}  // namespace plait::cpu
