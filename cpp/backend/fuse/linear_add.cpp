#include "backend/fuse/linear_add.h"
#include "backend/fuse/absorb.h"

namespace plait {

void fuse_linear_add(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        if (!std::holds_alternative<AddOp>(node.op)) return found;
        for (const size_t side : {size_t{1}, size_t{0}}) {  // the product is mostly on the right
            const NodeId product = node.inputs[side];
            const NodeId residual = node.inputs[1 - side];
            const Node& linear = g.node(product);
            if (!std::holds_alternative<LinearOp>(linear.op) || uses[product] != 1) continue;
            if (linear.type.shape != node.type.shape || g.node(residual).extent != node.extent ||
                g.node(residual).type.shape != node.type.shape)
                continue;
            std::vector<NodeId> inputs{linear.inputs[0], linear.inputs[1], residual};
            if (linear.inputs.size() > 2) inputs.push_back(linear.inputs[2]);
            found = {product, LinearAddOp{}, std::move(inputs)};
            break;
        }
        return found;
    });
}

}  // namespace plait
