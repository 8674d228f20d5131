// The one way in which rewrites change a graph: a node takes in the only-for-it result of another.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace plait {

// What a node becomes when it computes `absorbed`, one of its inputs, itself.
struct Absorbed {
    NodeId absorbed = 0;
    Op op;
};
// What `node` becomes, or nothing. `uses`: by node, how many read its result.
using Match = std::function<std::optional<Absorbed>(const Graph& graph, const Node& node,
                                                    std::span<const int> uses)>;

// Among nodes of that device.
void absorb(Graph& graph, uint8_t device, const Match& match);

}  // namespace plait
