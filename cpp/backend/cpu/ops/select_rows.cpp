#include "backend/cpu/kernels/rows/rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const SelectRowsOp&, const Node& node, Binder& binder) {
    SelectRowsArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.rows = binder.ref(node.inputs[1]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.row_bytes = row_elements(node.type) * static_cast<int64_t>(sizeof(float));
    binder.step(node, binder.kernels().select_rows, args);
}

}  // namespace plait::cpu
