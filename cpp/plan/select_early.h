// Moves select_rows ahead of everything that is computed row by row, so that rows nobody asks for
// are not computed: after the last attention of a model, all but the rows that want output.
#pragma once

#include "graph/graph.h"

namespace plait {

void select_early(Graph& graph);

}  // namespace plait
