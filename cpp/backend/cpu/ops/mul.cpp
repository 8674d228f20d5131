#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const MulOp&, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().mul, elementwise(node, binder));
}

}  // namespace plait::cpu
