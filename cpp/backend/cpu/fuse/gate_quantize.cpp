#include "backend/cpu/fuse/fuse.h"
#include "backend/fuse/absorb.h"

namespace plait::cpu {

void fuse_gate_quantize(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        const auto* quantize = std::get_if<ops::QuantizeRows>(&node.op);
        if (quantize == nullptr) return found;
        const auto* gate = std::get_if<ops::Gate>(&g.node(quantize->x).op);
        if (gate != nullptr && uses[quantize->x] == 1)
            found = {quantize->x, ops::GateQuantize{gate->g, gate->up, gate->activation}};
        return found;
    });
}

}  // namespace plait::cpu
