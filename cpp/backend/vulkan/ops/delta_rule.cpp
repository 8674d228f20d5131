#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref q, k, v, y, g, beta;
    uint32_t heads, columns, key_heads;
};

}  // namespace

void bind(const DeltaRuleOp&, const Node& node, Binder& binder) {
    const Shape& k = binder.type(node.inputs[1]).shape;  // [n, key_heads, key_dim]
    const Shape& v = node.type.shape;                    // [n, heads, value_dim]
    Args args{};
    args.states = states_of(node, binder);
    args.q = binder.ref(node.inputs[0]);
    args.k = binder.ref(node.inputs[1]);
    args.v = binder.ref(node.inputs[2]);
    args.g = binder.ref(node.inputs[3]);
    args.beta = binder.ref(node.inputs[4]);
    args.y = binder.ref(binder.id_of(node));
    args.heads = to_u32(v[1]);
    args.columns = to_u32(v[2]);
    args.key_heads = to_u32(k[1]);
    scan_step(node, "delta_rule", to_u32(k[2]), args, binder);
}

}  // namespace plait::vulkan
