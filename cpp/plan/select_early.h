// Moves select_rows ahead of row-wise ops, so that rows which are not selected are not computed. After
// a model's last attention only the output rows remain.
#pragma once

#include "graph/graph.h"

namespace plait {

void select_early(Graph& graph);

}  // namespace plait
