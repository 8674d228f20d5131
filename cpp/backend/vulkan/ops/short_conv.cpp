#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref x, y, weight, bias;
    uint32_t channels, has_bias;
};

}  // namespace

void bind(const ShortConvOp&, const Node& node, Binder& binder) {
    Args args{};
    args.states = states_of(node, binder);
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.weight = binder.operand(node.inputs[1]);
    args.has_bias = node.inputs.size() > 6;
    if (args.has_bias) args.bias = binder.operand(node.inputs[2]);
    args.channels = to_u32(node.type.shape[1]);
    const uint32_t taps = to_u32(binder.type(node.inputs[1]).shape[1]);
    binder.step(node, "short_conv", {taps}, {fixed_axis(args.channels, 64), sequences_axis()},
                args);
}

}  // namespace plait::vulkan
