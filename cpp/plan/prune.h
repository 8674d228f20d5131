// Removes every node that neither contributes to an output nor changes a cache.
#pragma once

#include "graph/graph.h"

namespace plait {

void prune(Graph& graph);

}  // namespace plait
