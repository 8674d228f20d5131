#include "backend/cpu/kernels/products/quantize.h"

#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

void bind(const QuantizeRowsOp&, const Node& node, Binder& binder) {
    const Shape& x = binder.type(node.inputs[0]).shape;
    QuantizeRowsArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(static_cast<NodeId>(&node - binder.graph().nodes().data()));
    args.extent = static_cast<uint8_t>(node.extent);
    args.fixed_rows = x[0];
    args.rows_per_item = x.rank == 3 ? x[1] : 1;
    args.columns = x[-1];
    binder.step(node, binder.kernels().quantize_rows, args);
}

}  // namespace plait::cpu
