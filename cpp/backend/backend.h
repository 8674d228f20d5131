// A device that can hold bytes and run graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/trace.h"
#include "backend/weight_stores.h"
#include "graph/graph.h"
#include "tensor/buffer.h"
#include "tensor/weight_source.h"

namespace plait {

// How many rows of each extent exist in a step.
struct Counts {
    int32_t tokens = 0;
    int32_t outputs = 0;
    int32_t sequences = 0;
    int32_t moves = 0;
};

// Where a value lives. Offsets are from the start of what a run brings along, so a plan outlives
// any particular buffer.
enum class Space : uint8_t { nowhere, arena, input, output, weight, storage };
struct Place {
    Space space = Space::nowhere;
    uint8_t index = 0;    // of outputs: an OutputId
    uint32_t id = 0;      // of weights and storage
    uint64_t offset = 0;  // bytes
};

// Asked between nodes, on the thread that called; true stops the run.
class StopSignal {
public:
    virtual ~StopSignal() = default;
    virtual bool requested() = 0;
};

// Makes something else of a value, on the thread that called; what it throws ends the run.
class Editor {
public:
    virtual ~Editor() = default;
    // `rows`: those of the step, [n, ...] of the shape, to be overwritten. `index` is that of ops::Edit.
    virtual void edit(uint16_t index, std::span<float> rows, const Shape& shape, Extent extent) = 0;
};

// What one run brings along.
struct RunArguments {
    Buffer* arena = nullptr;
    Buffer* inputs = nullptr;
    std::byte* outputs[2] = {nullptr, nullptr};  // first row of each OutputId
    Counts counts;
    StopSignal* stop = nullptr;
    Trace* trace = nullptr;    // where to note what ran when
    Editor* editor = nullptr;  // of plans with edits
};

// A graph (or part of one) ready to run any number of times.
class Executable {
public:
    virtual ~Executable() = default;
    // Working memory that its kernels need at once, all threads together.
    virtual uint64_t scratch_bytes() const = 0;
    // Throws Interrupted when stopped, BackendError when the device fails.
    virtual void run(const RunArguments& run) = 0;
};

// Command buffers of a device that replays what it recorded.
struct CommandCounts {
    uint64_t recorded = 0;
    uint64_t submitted = 0;
};

// Of a backend that is several devices.
inline constexpr size_t kMostDevices = 16;

// What lower() needs besides the graph.
struct Lowering {
    std::span<Buffer* const> storage;  // by index of ops::Storage
    bool fuse = true;
    uint8_t device = 0;  // nodes of other devices stay as they are
};

// What compile() needs besides the graph.
struct Segment {
    const Graph& graph;
    std::span<const NodeId> nodes;     // in order
    std::span<const uint32_t> stages;  // by node of the graph, never falling; see plan/stages.h
    std::span<const Place> places;     // by node of the graph
    const WeightStores& weights;
    std::span<Buffer* const> storage;  // by index of ops::Storage
    uint64_t scratch_offset = 0;  // into the arena: bytes that Executable::scratch_bytes() asks for
};

class Backend : public Allocator {
public:
    virtual std::string_view name() const = 0;  // "cpu"
    // By Node::device.
    virtual std::vector<std::string> devices() const { return {std::string(name())}; }
    // The backends that it is made of, by Node::device; none: it is one device.
    virtual std::vector<Backend*> members() { return {}; }
    virtual std::string packing() const = 0;  // backends of equal packing share weight copies
    virtual int n_threads() const = 0;        // that a trace may name
    // Whether a row's results are the same bits whatever rows are computed with it.
    virtual bool invariant() const { return true; }
    virtual CommandCounts commands() const { return {}; }  // since it was made
    // Bytes of memory that it can still give; nothing where only the system knows.
    virtual std::optional<uint64_t> free_bytes() const { return std::nullopt; }
    // For what the host writes before each run, and for what it reads after: memory with a host
    // address.
    virtual std::unique_ptr<Buffer> allocate_inputs(uint64_t bytes) { return allocate(bytes); }
    virtual std::unique_ptr<Buffer> allocate_results(uint64_t bytes) { return allocate(bytes); }
    // For a cache of a layer: where the layer is computed.
    virtual std::unique_ptr<Buffer> allocate_cache(uint64_t bytes, int layer) {
        static_cast<void>(layer);
        return allocate(bytes);
    }
    virtual std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) = 0;

    // Whether it has a kernel for a node of a model's graph, as it is before lowering.
    virtual bool supports(const Graph& graph, NodeId node) const = 0;
    // Rewrites the graph into operations that this backend runs (quantised products get their
    // quantize_rows) and, where asked, fuses what costs less together. Called once, before values
    // are placed.
    virtual void lower(Graph& graph, const Lowering& how) const = 0;
    // Packs the weights that the segment needs and that no plan needed before.
    virtual std::unique_ptr<Executable> compile(const Segment& segment) = 0;
};

}  // namespace plait
