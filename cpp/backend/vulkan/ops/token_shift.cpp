#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref x, y;
    uint32_t width;
};

}  // namespace

void bind(const TokenShiftOp&, const Node& node, Binder& binder) {
    const Args args{states_of(node, binder), binder.ref(node.inputs[0]),
                    binder.ref(binder.id_of(node)), to_u32(node.type.shape[1])};
    binder.step(node, "token_shift", {}, {fixed_axis(args.width, 64), sequences_axis()}, args);
}

}  // namespace plait::vulkan
