#include "backend/cpu/fuse/fuse.h"
#include "backend/fuse/absorb.h"

namespace plait::cpu {

void fuse_norm_quantize(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        if (!std::holds_alternative<QuantizeRowsOp>(node.op)) return found;
        const Node& norm = g.node(node.inputs[0]);
        const auto* op = std::get_if<RmsNormOp>(&norm.op);
        // A row is a vector of the norm: heads have several to a row.
        if (op != nullptr && uses[node.inputs[0]] == 1 && norm.type.shape.rank == 2)
            found = {node.inputs[0], NormQuantizeOp{op->epsilon}, norm.inputs};
        return found;
    });
}

}  // namespace plait::cpu
