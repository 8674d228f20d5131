// Arguments of the norms from nodes.
#pragma once

#include "backend/cpu/kernels/norms/norms.h"
#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

inline NormArgs norm(const Node& node, Binder& binder, float epsilon) {
    NormArgs args{};
    args.x = operand(node.inputs[0], binder);
    args.y = binder.ref(id_of(node, binder));
    args.vectors = vectors_of(node, binder.type(node.inputs[0]).shape);
    args.epsilon = epsilon;
    args.has_weight = node.inputs.size() > 1;
    args.has_bias = node.inputs.size() > 2;
    if (args.has_weight) {
        args.weight = operand(node.inputs[1], binder);
        args.weights = binder.type(node.inputs[1]).shape.elements() / args.vectors.width;
    }
    if (args.has_bias) args.bias = operand(node.inputs[2], binder);
    return args;
}

}  // namespace plait::cpu
