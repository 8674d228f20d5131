// A plan for people: its nodes with what they are, how large, and what runs together.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "tensor/weight_source.h"

namespace plait {

struct NodeInfo {
    std::string op;    // "linear"
    std::string name;  // of a weight or an input, or role and layer: "blk.3.attn_out"
    int layer = -1;
    TensorType type;     // axis 0 is a capacity where `counts` says what it counts
    std::string counts;  // "tokens", "outputs", "moves" or nothing
    uint64_t bytes = 0;
    uint32_t stage = 0;  // nodes of one stage may run at the same time
    std::vector<NodeId> inputs;
    std::vector<std::string> fused;  // operations that it is made of, where more than one
    bool writes_cache = false;
    bool output = false;
    std::string device;  // that computes it, or reads it first
};

std::vector<NodeInfo> describe(const Plan& plan, const WeightStores& weights,
                               const std::vector<std::string>& devices);

// What happened in traced runs.
struct TracedNode {
    std::string op, name;
    int32_t thread = 0;
    int64_t begin_ns = 0, end_ns = 0;
};

}  // namespace plait
