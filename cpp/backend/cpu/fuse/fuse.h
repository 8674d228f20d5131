// Operations that cost less together than one after the other. Each rewrite gives the same bits as
// what it replaces; nothing that is an output of the graph is absorbed.
#pragma once

#include <array>

#include "backend/fuse/linear_add.h"
#include "graph/graph.h"

namespace plait::cpu {

struct Rewrite {
    const char* name;
    void (*apply)(Graph& graph, uint8_t device);  // to nodes of that device
};

void fuse_norm_quantize(Graph& graph, uint8_t device);  // quantize_rows(rms_norm(x))
void fuse_gate_quantize(Graph& graph, uint8_t device);  // quantize_rows(gate(g, up))

// In the order in which they are applied, to a graph that was lowered.
inline constexpr std::array kRewrites = {
    Rewrite{"norm_quantize", fuse_norm_quantize},
    Rewrite{"gate_quantize", fuse_gate_quantize},
    Rewrite{"linear_add", fuse_linear_add},
};

}  // namespace plait::cpu
