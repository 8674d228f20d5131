// Named values of a graph made into outputs: no rewrite removes or absorbs them, all their rows are
// computed, and compiling keeps their bytes until the run ends.
#pragma once

#include <compare>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace plait {

// A value as a model names it. Where several of a layer have one role (an encoder-decoder attends
// twice), `nth` tells them apart, in the order in which the model makes them.
struct ValueName {
    Role role = Role::none;
    int16_t layer = -1;
    uint16_t nth = 0;
    friend auto operator<=>(const ValueName&, const ValueName&) = default;
};
// "blk.3.q", and "blk.3.q.2" for the second of them.
std::string full_name(const ValueName& name);

// Whether the value is computed for rows that were asked for, and for no others.
bool only_of_outputs(Role role);

// What can be captured of a graph that no rewrite has seen, in its order.
struct NamedValue {
    ValueName name;
    NodeId node = 0;
};
std::vector<NamedValue> named_values(const Graph& graph);

// Makes outputs of those that the graph has: OutputId captured(i) is the i-th name.
constexpr OutputId captured(size_t i) {
    return static_cast<OutputId>(static_cast<size_t>(OutputId::first_captured) + i);
}
// In a step without outputs the values that only outputs have are left out.
void capture(Graph& graph, std::span<const ValueName> names, bool has_outputs);

}  // namespace plait
