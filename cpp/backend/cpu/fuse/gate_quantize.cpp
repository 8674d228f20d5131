#include "backend/cpu/fuse/fuse.h"
#include "backend/fuse/absorb.h"

namespace plait::cpu {

void fuse_gate_quantize(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        if (!std::holds_alternative<QuantizeRowsOp>(node.op)) return found;
        const Node& gate = g.node(node.inputs[0]);
        const auto* op = std::get_if<GateOp>(&gate.op);
        if (op != nullptr && uses[node.inputs[0]] == 1)
            found = {node.inputs[0], GateQuantizeOp{op->how}, gate.inputs};
        return found;
    });
}

}  // namespace plait::cpu
