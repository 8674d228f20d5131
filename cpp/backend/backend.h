// The interface between plans and the devices that run them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/lowered_graph.h"
#include "backend/trace.h"
#include "backend/weight_stores.h"
#include "graph/graph.h"
#include "tensor/buffer.h"
#include "tensor/weight_source.h"

namespace plait {

// The number of rows of each extent in a step.
struct Counts {
    int32_t tokens = 0;
    int32_t outputs = 0;
    int32_t sequences = 0;
    int32_t moves = 0;
};

// The memory that holds a value. Offsets into the arena, the inputs and the outputs are relative to
// the buffers of a run, so a plan does not depend on particular buffers.
enum class Space : uint8_t {
    nowhere,
    arena,
    input,
    output,
    weight,
    storage,
    sent,      // memory that the device writes and the host reads
    received,  // memory that the host writes and the device reads
};
struct Place {
    Space space = Space::nowhere;
    uint8_t index = 0;    // of outputs: an OutputId
    uint32_t id = 0;      // of weights and storage
    uint64_t offset = 0;  // bytes
    bool operator==(const Place&) const = default;
};

// Checked between nodes, on the calling thread; true stops the run.
class StopSignal {
public:
    virtual ~StopSignal() = default;
    virtual bool requested() = 0;
};

// Replaces values on the host, on the calling thread. An exception ends the run.
class Editor {
public:
    virtual ~Editor() = default;
    // Overwrites the rows of a value, [n, ...] with n rows in this step and the other axes of
    // `shape`. `index` is ops::Edit::index.
    virtual void edit(uint16_t index, std::span<float> rows, const Shape& shape, Extent extent) = 0;
};

// The buffers and row counts of one run on one device.
struct RunArguments {
    Buffer* arena = nullptr;
    Buffer* inputs = nullptr;
    std::byte* outputs[2] = {nullptr, nullptr};  // first row of each OutputId
    Counts counts;
    StopSignal* stop = nullptr;
    Trace* trace = nullptr;  // null: nothing is traced
};

// Nodes of a graph, bound to kernels and ready to run any number of times.
class Executable {
public:
    virtual ~Executable() = default;
    // Bytes of scratch memory in the arena that the kernels of all threads need at the same time.
    virtual uint64_t scratch_bytes() const = 0;
    // Throws Interrupted if stopped, BackendError if the device fails.
    virtual void run(const RunArguments& run) = 0;
};

// Command buffers of a device that replays recorded commands.
struct CommandCounts {
    uint64_t recorded = 0;
    uint64_t submitted = 0;
};

// Consecutive nodes of a lowered graph that run without the host, and the data needed to compile
// them.
struct Segment {
    std::span<const NodeId> nodes;
    std::span<const uint32_t> stages;  // by node of the graph, never decreasing
    std::span<const Place> places;     // by node of the graph
    DeviceWeights weights;
    std::span<Buffer* const> storage;  // by index of ops::Storage; null on another device
    Buffer* sent = nullptr;            // null if the graph exchanges no values
    Buffer* received = nullptr;
    uint64_t scratch_offset = 0;  // of the scratch memory, into the arena
    NodeId first_node = 0;        // added to node ids in traces
};

class Backend : public Allocator {
public:
    virtual std::string_view name() const = 0;  // "cpu"
    virtual std::string packing() const = 0;    // backends of equal packing share weight copies
    virtual int n_threads() const = 0;          // traces number threads from 0
    // True if the bits of a row's results do not depend on the other rows of a step.
    virtual bool invariant() const { return true; }
    virtual CommandCounts commands() const { return {}; }  // since its construction
    // Bytes of memory that can still be allocated; nullopt if the backend does not limit them.
    virtual std::optional<uint64_t> free_bytes() const { return std::nullopt; }
    // Memory with a host address. The host writes inputs before a run, and reads results after it.
    virtual std::unique_ptr<Buffer> allocate_inputs(uint64_t bytes) { return allocate(bytes); }
    virtual std::unique_ptr<Buffer> allocate_results(uint64_t bytes) { return allocate(bytes); }
    virtual std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) = 0;

    // Returns true if the backend has a kernel for this node of a model's graph.
    virtual bool supports(const Graph& graph, NodeId node) const = 0;
    // Translates a graph into the ops that the backend runs. If `fuse` is true, combines ops where
    // one kernel costs less than two.
    virtual std::unique_ptr<LoweredGraph> lower(Graph graph, bool fuse) = 0;
};

}  // namespace plait
