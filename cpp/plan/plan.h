// A graph made runnable: lowered, pruned, values placed, kernels bound. Holds offsets, no buffers.
// Edits cut it into parts that run one after the other, with the caller's turn between.
#pragma once

#include <array>
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
    Plan(Graph graph, Backend& backend, const InputLayout& inputs, const WeightStores& weights,
         std::span<Buffer* const> storage, bool fuse = true);

    void run(const RunArguments& arguments) {
        parts_.front()->run(arguments);
        for (size_t i = 0; i < edits_.size(); ++i) {
            run_edit(edits_[i], arguments);
            parts_[i + 1]->run(arguments);
        }
    }

    const Graph& graph() const { return graph_; }
    std::span<const uint32_t> stages() const { return stages_; }  // by node
    uint64_t arena_bytes() const { return arena_bytes_; }
    uint64_t bytes() const;  // of the plan itself, about
    const std::array<uint64_t, kMostDevices>& nodes_by_device() const { return n_nodes_; }
    // Inputs that the graph reads; refreshed before a run.
    std::span<const InputId> inputs() const { return inputs_; }
    std::span<const CapturedPlace> captured() const { return captured_; }

private:
    struct Edit {
        uint16_t index;
        Place from, to;
        Extent extent;
        TensorType type;  // axis 0 is a capacity
    };
    void compile(Backend& backend, const Segment& whole);
    static void run_edit(const Edit& edit, const RunArguments& arguments);

    Graph graph_;
    std::vector<uint32_t> stages_;
    std::array<uint64_t, kMostDevices> n_nodes_{};
    std::vector<InputId> inputs_;
    std::vector<CapturedPlace> captured_;
    uint64_t arena_bytes_ = 0;
    std::vector<std::unique_ptr<Executable>> parts_;  // one more than edits
    std::vector<Edit> edits_;
};

}  // namespace plait
