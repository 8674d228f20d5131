// A graph made runnable: lowered, pruned, values placed, kernels bound. Holds offsets, no buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "graph/graph.h"
#include "plan/input_layout.h"

namespace plait {

// Where a captured value lies when a run has ended.
struct CapturedPlace {
    uint16_t index = 0;  // into the names that were captured
    Place place;
    Extent extent = Extent::tokens;
    TensorType type;  // axis 0 is a capacity
};

class Plan {
public:
    Plan(Graph graph, Backend& backend, const InputLayout& inputs, WeightStore& weights,
         std::span<Buffer* const> storage, bool fuse = true);

    void run(const RunArguments& arguments) { executable_->run(arguments); }

    const Graph& graph() const { return graph_; }
    std::span<const uint32_t> stages() const { return stages_; }  // by node
    uint64_t arena_bytes() const { return arena_bytes_; }
    uint64_t bytes() const;  // of the plan itself, about
    // Inputs that the graph reads; refreshed before a run.
    std::span<const InputId> inputs() const { return inputs_; }
    std::span<const CapturedPlace> captured() const { return captured_; }

private:
    Graph graph_;
    std::vector<uint32_t> stages_;
    std::vector<InputId> inputs_;
    std::vector<CapturedPlace> captured_;
    uint64_t arena_bytes_ = 0;
    std::unique_ptr<Executable> executable_;
};

}  // namespace plait
