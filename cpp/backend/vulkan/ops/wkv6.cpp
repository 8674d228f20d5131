#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref r, k, v, w, y, u;
    uint32_t heads, columns;
};

}  // namespace

void bind(const Wkv6Op&, const Node& node, Binder& binder) {
    const Shape& shape = node.type.shape;  // [n, heads, dim]
    Args args{};
    args.states = states_of(node, binder);
    args.r = binder.ref(node.inputs[0]);
    args.k = binder.ref(node.inputs[1]);
    args.v = binder.ref(node.inputs[2]);
    args.w = binder.ref(node.inputs[3]);
    args.u = binder.operand(node.inputs[4]);
    args.y = binder.ref(binder.id_of(node));
    args.heads = to_u32(shape[1]);
    args.columns = to_u32(shape[2]);
    scan_step(node, "wkv6", args.columns, args, binder);
}

}  // namespace plait::vulkan
