// Translates a model's graph into the ops that the CPU runs.
#pragma once

#include <vector>

#include "backend/cpu/graph.h"

namespace plait::cpu {

struct Lowered {
    std::vector<CpuNode> nodes;
    GraphOutputs outputs;
};

// Products with block types read their rows through a QuantizeRows, one for each distinct x.
// Attention over a cache of many rows reads sums of splits of the keys if several threads share the
// work. `fuse`: uses LinearAdd, NormQuantize and GateQuantize where nothing else reads the value
// between. Each fused op gives the bits of the ops that it replaces.
Lowered lower(Graph graph, int threads, bool fuse);

}  // namespace plait::cpu
