#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const AddOp&, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().add, elementwise(node, binder));
}

}  // namespace plait::cpu
