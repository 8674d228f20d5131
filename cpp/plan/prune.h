// Drops every node whose result nobody sees: neither an output nor something written to a cache.
#pragma once

#include "graph/graph.h"

namespace plait {

void prune(Graph& graph);

}  // namespace plait
