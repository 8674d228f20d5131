#include "backend/cpu/kernels/products/embed.h"

#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

void bind(const EmbedOp&, const Node& node, Binder& binder) {
    EmbedArgs args{};
    args.table = binder.matrix(node.inputs[0]);
    args.tokens = binder.ref(node.inputs[1]);
    args.y = binder.ref(static_cast<NodeId>(&node - binder.graph().nodes().data()));
    args.extent = static_cast<uint8_t>(node.extent);
    args.fixed_rows = node.type.shape[0];
    binder.step(node, binder.kernels().embed, args);
}

}  // namespace plait::cpu
