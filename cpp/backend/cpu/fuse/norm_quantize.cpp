#include "backend/cpu/fuse/fuse.h"
#include "backend/fuse/absorb.h"

namespace plait::cpu {

void fuse_norm_quantize(Graph& graph, uint8_t device) {
    absorb(graph, device, [](const Graph& g, const Node& node, std::span<const int> uses) {
        std::optional<Absorbed> found;
        const auto* quantize = std::get_if<ops::QuantizeRows>(&node.op);
        if (quantize == nullptr) return found;
        const Node& norm = g.node(quantize->x);
        const auto* op = std::get_if<ops::RmsNorm>(&norm.op);
        // A row is a vector of the norm: heads have several to a row.
        if (op != nullptr && uses[quantize->x] == 1 && norm.type.shape.rank == 2)
            found = {quantize->x, ops::NormQuantize{op->x, op->weight, op->epsilon}};
        return found;
    });
}

}  // namespace plait::cpu
