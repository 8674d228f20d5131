// Capturing named values. A captured value becomes an output of the graph: no rewrite removes or
// fuses it, all of its rows are computed, and its bytes are kept until the run ends.
#pragma once

#include <compare>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace plait {

// A value as a model names it. If several values of a layer have one role (an encoder-decoder
// attends twice), `nth` counts them from 0 in the order of the graph. Role::none: node number `nth`
// of the graph, which the callers of a model do not see.
struct ValueName {
    Role role = Role::none;
    int16_t layer = -1;
    uint16_t nth = 0;
    friend auto operator<=>(const ValueName&, const ValueName&) = default;
};
// "blk.3.q", or "blk.3.q.2" for the second value of that role.
std::string full_name(const ValueName& name);
// The other accepted spelling: "l_out.3" for "blk.3.l_out".
std::string short_name(const ValueName& name);

// Returns true if values of this role have only the output rows.
bool only_of_outputs(Role role);

// A value that can be captured: floats, or the routes of a mixture, which are pairs of an expert and
// the bits of its weight; see ops::Route.
struct NamedValue {
    ValueName name;
    NodeId node = 0;
};
// In the order of the graph, before the passes of a plan (plan/passes.h) have changed it.
std::vector<NamedValue> named_values(const Graph& graph);

// The output that holds the i-th captured name.
constexpr OutputId captured(size_t i) {
    return static_cast<OutputId>(static_cast<size_t>(OutputId::first_captured) + i);
}
// Turns the named values that the graph has into outputs. In a step without output rows, values
// that have only output rows are skipped.
void capture(Graph& graph, std::span<const ValueName> names, bool has_outputs);

}  // namespace plait
