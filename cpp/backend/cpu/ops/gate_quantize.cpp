#include "backend/cpu/kernels/products/quantize.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const GateQuantizeOp& op, const Node& node, Binder& binder) {
    const TensorType& type = binder.type(node.inputs[0]);
    GateQuantizeArgs args{};
    args.g = binder.ref(node.inputs[0]);
    args.up = binder.ref(node.inputs[1]);
    args.y = binder.ref(id_of(node, binder));
    args.how = static_cast<uint8_t>(op.how);
    args.extent = extent_of(node);
    args.fixed_rows = type.shape[0];
    args.columns = type.shape[-1];
    args.rows_per_item = row_elements(type) / args.columns;
    binder.step(node, binder.kernels().gate_quantize, args);
}

}  // namespace plait::cpu
