// Changes to named values of a graph: control vectors and edits by the caller.
#pragma once

#include <span>

#include "graph/capture.h"

namespace plait {

// Adds a vector to the residual stream after each of the first n_layers layers:
// l_out += InputId{control, layer}.
// Zou et al. 2023, arXiv:2310.01405; Turner et al. 2023, arXiv:2308.10248.
void add_control(Graph& graph, int n_layers);

// Inserts edit i after the value of the i-th name if the graph has it. Several edits of one value run
// in order. In a step without output rows, values that have output rows only are not edited.
void insert_edits(Graph& graph, std::span<const ValueName> names, bool has_outputs);

}  // namespace plait
