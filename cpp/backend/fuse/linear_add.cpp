#include "backend/fuse/linear_add.h"
#include "backend/fuse/absorb.h"

namespace plait {

void fuse_linear_add(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        const auto* add = std::get_if<ops::Add>(&node.op);
        if (add == nullptr) return found;
        // The product is usually on the right.
        for (const auto& [product, residual] : {std::pair(add->b, add->a), {add->a, add->b}}) {
            const Node& linear = g.node(product);
            const auto* op = std::get_if<ops::Linear>(&linear.op);
            if (op == nullptr || uses[product] != 1) continue;
            if (linear.type.shape != node.type.shape || g.node(residual).extent != node.extent ||
                g.node(residual).type.shape != node.type.shape)
                continue;
            found = {product, ops::LinearAdd{op->x, op->weight, residual, op->bias}};
            break;
        }
        return found;
    });
}

}  // namespace plait
