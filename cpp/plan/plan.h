// A compiled graph: pruned, cut by device and lowered, with places for its values and bound
// kernels. Holds offsets into buffers, but no buffers.
//
// The graph of each device runs in segments. A segment starts where the host must first write a
// value: one that the caller edits, or one received from another device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "backend/device_set.h"
#include "graph/graph.h"
#include "plan/buffers.h"

namespace plait {

// The buffers and row counts of one run.
struct PlanArguments {
    const DeviceBuffers& arenas;
    const DeviceBuffers& inputs;
    std::byte* outputs[2] = {nullptr, nullptr};  // first row of each OutputId
    Counts counts;
    StopSignal* stop = nullptr;
    Trace* trace = nullptr;    // null: nothing is traced
    Editor* editor = nullptr;  // of plans with edits
};

// Where a captured value is stored after a run.
struct CapturedPlace {
    uint16_t index = 0;  // into the names that were captured
    uint8_t device = 0;
    const std::byte* address =
        nullptr;  // null: in the arena of the device, or an output of the run
    Place place;
    Extent extent = Extent::tokens;
    TensorType type;  // axis 0 is a capacity
};

// The devices and the memory that a plan is compiled for.
struct PlanTarget {
    DeviceSet& devices;
    const InputLayout& inputs;
    const WeightStores& weights;
    std::span<Buffer* const> storage;         // by index of ops::Storage
    std::span<const size_t> storage_devices;  // by index of ops::Storage
    bool fuse = true;
};

class Plan {
public:
    Plan(Graph graph, const PlanTarget& target);

    void run(const PlanArguments& arguments);

    // The part of the plan that one device computes.
    struct Part {
        uint8_t device;
        NodeId first_node;  // its first node's number among all nodes of the plan
        std::unique_ptr<LoweredGraph> graph;
        std::vector<uint32_t> stages;  // by node
        uint64_t arena_bytes = 0;      // including scratch memory
    };
    std::span<const Part> parts() const { return parts_; }
    size_t n_nodes() const;
    const LoweredNode& node(NodeId number) const;  // by number among all nodes

    std::vector<uint64_t> arena_bytes() const;  // by device
    uint64_t bytes() const;                     // approximate size of the plan itself
    // The inputs to write before a run.
    std::span<const InputId> inputs() const { return inputs_; }
    std::span<const CapturedPlace> captured() const { return captured_; }

private:
    friend class PlanCompiler;

    // The place of a value that the host reads or writes.
    struct HostPlace {
        std::byte* address = nullptr;  // null: in the arena of the device, or an output of the run
        Place place;
    };
    struct Edit {
        uint16_t index;
        HostPlace from, to;
        Extent extent;
        TensorType type;  // axis 0 is a capacity
    };
    struct Copy {
        HostPlace from, to;
        Extent extent;
        uint64_t row_bytes;  // the whole value if its extent is fixed
    };
    // One segment on one device.
    struct Step {
        uint8_t device;
        std::vector<std::variant<Edit, Copy>> before;
        std::unique_ptr<Executable> executable;  // null: no kernel runs
    };
    void run_steps(const PlanArguments& arguments);
    static void run_before(const Edit& edit, uint8_t device, const PlanArguments& arguments);
    static void run_before(const Copy& copy, uint8_t device, const PlanArguments& arguments);

    DeviceSet& devices_;
    std::vector<Part> parts_;
    std::vector<Step> steps_;
    std::vector<InputId> inputs_;
    std::vector<CapturedPlace> captured_;
    std::vector<std::shared_ptr<Buffer>> exchanged_;  // memory that copies go through
};

// Returns the arena bytes that the graph needs if one device computes all of it, without scratch
// memory.
uint64_t estimate_arena_bytes(Graph graph, Backend& backend, const InputLayout& inputs, bool fuse);

}  // namespace plait
