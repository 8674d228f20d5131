#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const SubOp&, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().sub, elementwise(node, binder));
}

}  // namespace plait::cpu
