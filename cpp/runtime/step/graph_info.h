// Human-readable descriptions of the nodes of a plan.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "tensor/weight_source.h"

namespace plait {

struct NodeInfo {
    std::string op;    // "linear"
    std::string name;  // of a weight or an input; otherwise role and layer: "blk.3.attn_out"
    int layer = -1;
    TensorType type;     // axis 0 is a capacity unless `counts` is empty
    std::string counts;  // what axis 0 counts: "tokens", "outputs", "moves" or nothing
    uint64_t bytes = 0;
    uint32_t stage = 0;  // nodes of one stage may run at the same time
    std::vector<NodeId> inputs;
    std::vector<std::string> fused;  // the ops that a fused op replaces
    bool writes_cache = false;
    bool output = false;
    std::string device;  // computes or reads the value
};

std::vector<NodeInfo> describe(const Plan& plan, const WeightStores& weights,
                               const std::vector<std::string>& devices);

// One node of a traced run on one thread.
struct TracedNode {
    std::string op, name;
    int32_t thread = 0;
    int64_t begin_ns = 0, end_ns = 0;
};

}  // namespace plait
