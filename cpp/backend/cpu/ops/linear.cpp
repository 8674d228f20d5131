#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

namespace {

void bind_product(const Node& node, Binder& binder, LinearArgs args) {
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(static_cast<NodeId>(&node - binder.graph().nodes().data()));
    args.extent = static_cast<uint8_t>(node.extent);
    args.fixed_rows = node.type.shape[0];
    args.weight = binder.matrix(node.inputs[1]);
    const auto scratch =
        static_cast<uint64_t>(product_scratch_bytes(args.weight) + kRedoFloats * 4);
    binder.step(node, binder.kernels().linear, args, scratch).redo = kErased<linear_redo>;
}

void add_bias(const Node& node, size_t input, Binder& binder, LinearArgs& args) {
    args.has_bias = node.inputs.size() > input;
    if (args.has_bias) args.bias = binder.vector(node.inputs[input]);
}

}  // namespace

void bind(const LinearOp&, const Node& node, Binder& binder) {
    LinearArgs args{};
    add_bias(node, 2, binder, args);
    bind_product(node, binder, args);
}

void bind(const LinearAddOp&, const Node& node, Binder& binder) {
    LinearArgs args{};
    args.residual = binder.ref(node.inputs[2]);
    args.has_residual = true;
    add_bias(node, 3, binder, args);
    bind_product(node, binder, args);
}

}  // namespace plait::cpu
