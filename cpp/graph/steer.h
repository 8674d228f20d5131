// Changes to named values of a graph: a control vector, and what the caller makes of them.
#pragma once

#include <span>

#include "graph/capture.h"

namespace plait {

// Adds a vector to the output of the first layers, the residual stream: l_out += InputId{control, layer}.
// Zou et al. 2023, arXiv:2310.01405; Turner et al. 2023, arXiv:2308.10248.
void add_control(Graph& graph, int n_layers);

// Edit i stands after the i-th name, where the graph has it; several of one name follow each other.
// In a step without outputs the values that only outputs have are left alone.
void insert_edits(Graph& graph, std::span<const ValueName> names, bool has_outputs);

}  // namespace plait
