// Rewrites of a graph: a general one, fusions, low-rank adapters, control vectors and edits.
#pragma once

#include <functional>
#include <span>

#include "graph/capture.h"
#include "graph/graph.h"

namespace plait {

// Returns the value that replaces node `old` in all nodes after it, given the node's copy in the
// new graph: the copy itself, or a value computed from it. The replacement gets the node's name.
using Follow = std::function<Value(NodeId old, Value copy)>;

void rewrite(Graph& graph, const Follow& follow);

// Replaces x + linear(y) by LinearAdd if no other node reads the product. The results have the same
// bits, and one pass over the rows is saved.
void fuse_linear_add(Graph& graph);

// The matrices that one low-rank adapter adds to one weight. Hu et al. 2021, arXiv:2106.09685:
//
//   y = W x + sum over adapters of scale * B (A x)        A [r, in], B [out, r]
//
// The same holds for the matrices of experts and heads; for a table of tokens,
// y = W[t] + scale * B A[t].
struct LowRank {
    WeightId base = 0;
    Weight a;            // [r, in] or [e, r, in]; for a table [vocab, r]
    Weight b;            // [out, r] or [e, out, r]
    uint16_t scale = 0;  // index of its scale: InputId{adapter_scale, scale}
    // Each token has a scale of its own, and a token may do without the adapter.
    bool by_token = false;
};

// Adds the adapters to each op that multiplies by their weight or looks up rows of it.
void add_low_rank(Graph& graph, std::span<const LowRank> deltas);

// Returns the weights whose every use in the graph can be changed by adapters.
std::vector<WeightId> adaptable_weights(const Graph& graph);

// Adds a vector to the residual stream after each of the first n_layers layers:
// l_out += InputId{control, layer}.
// Zou et al. 2023, arXiv:2310.01405; Turner et al. 2023, arXiv:2308.10248.
void add_control(Graph& graph, int n_layers);

// Where edits change a value: on the host, or as an op of the graph, whose rows are inputs.
struct EditPoint {
    ValueName name;
    bool on_host = true;
    uint16_t index = 0;  // of ops::Edit, or of the inputs with the picks of each row
    bool operator==(const EditPoint&) const = default;
};

// The elements of the rows of all edits: InputId{edit_rows, group}, with `elements` floats.
struct EditRowsInput {
    uint16_t group = 0;
    int64_t elements = 0;
    bool operator==(const EditRowsInput&) const = default;
};

// Inserts the points after the values that they name, if the graph has them. Several points of one
// value run in order. In a step without output rows, values that have output rows only are not
// edited.
void insert_edits(Graph& graph, std::span<const EditPoint> points, const EditRowsInput& rows,
                  bool has_outputs);

}  // namespace plait
