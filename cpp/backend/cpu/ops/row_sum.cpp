#include "backend/cpu/ops/norm.h"

namespace plait::cpu {

void bind(const RowSumOp&, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().row_sum, norm(node, binder, /*epsilon=*/0.0f));
}

}  // namespace plait::cpu
