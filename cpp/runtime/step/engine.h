// Builds, caches and runs the plans of a context. Owns its devices and the buffers that all plans
// share.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "graph/capture.h"
#include "memory/layout.h"
#include "model/model.h"
#include "plan/plan_cache.h"
#include "runtime/devices/storage.h"
#include "runtime/steering/steering.h"
#include "runtime/step/attention_pattern.h"
#include "runtime/step/graph_info.h"
#include "runtime/step/outputs.h"

namespace plait {

class LoadedModel;

// The phases of a step whose times are counted.
enum class Phase : uint8_t { place, build, input, compute, output };
inline constexpr size_t kPhases = 5;
inline constexpr size_t kMissReasons = 7;

// Counters and times of a context since its construction or the last reset.
struct Stats {
    uint64_t tokens = 0;
    uint64_t microbatches = 0;
    uint64_t plans_built = 0;
    uint64_t plans_reused = 0;
    std::array<uint64_t, kMissReasons> misses{};           // by MissReason
    std::array<double, kPhases> seconds{};                 // by Phase
    std::array<uint64_t, DeviceSet::kMaxDevices> nodes{};  // nodes run, by device
    uint64_t rows_copied = 0;  // cache rows copied by sequence copies, shifts and defragmentation
    uint64_t commands_recorded = 0;  // command buffers recorded by devices that replay them
    uint64_t commands_submitted = 0;
};

// The size of the largest step of a context.
struct EngineLimits {
    uint32_t n_tokens = 512;  // max tokens per microbatch
    uint32_t n_sequences = 1;
    uint32_t n_rows = 4096;  // min capacity of the lists of runs of cache rows and of key positions
    BuildOptions build;
    bool reuse = true;
    bool fuse = true;
};

class Engine {
public:
    Engine(std::shared_ptr<const LoadedModel> model, DeviceSet devices, const MemoryLayout& layout,
           const EngineLimits& limits);

    // Returns the offset and capacity of each input of the context's plans.
    static InputLayout input_layout(const MemoryLayout& memory, const EngineLimits& limits,
                                    int64_t width);

    DeviceSet& device_set() { return devices_; }
    const DeviceSet& device_set() const { return devices_; }
    // Bit d is set if a plan has computed on device d.
    uint32_t used_devices() const { return used_devices_; }
    OutputPool& outputs() { return outputs_; }
    Stats& stats() { return stats_; }
    const Stats& stats() const { return stats_; }
    const EngineLimits& limits() const { return limits_; }

    // Copies `values` into an input of the next run.
    template <typename T>
    void write(InputId id, std::span<const T> values) {
        write_bytes(id, std::as_bytes(values));
    }
    // Returns the buffer of an input of the next run, for values that are computed in place.
    template <typename T>
    std::span<T> in_place(InputId id, size_t n) {
        return {reinterpret_cast<T*>(input_bytes(id, n * sizeof(T))), n};
    }

    // A named value of a graph. Axis 0 of its type is a capacity.
    struct ValueInfo {
        ValueName name;
        TensorType type;
        std::optional<PatternSource> pattern{};  // of Role::attn_pattern; axis 1 is its heads
    };
    // Returns the index of a set of names, for PlanKey::captures. Equal sets share an index; the
    // empty set has index 0.
    uint16_t capture_set(const std::vector<ValueName>& names);
    std::span<const ValueName> captures(uint16_t set) const { return capture_sets_[set]; }
    const DeviceBuffers& arenas() const { return arenas_; }
    // Returns the bytes of an input as they were last written, up to its capacity.
    std::span<const std::byte> written(InputId id) {
        return {inputs_.host() + input_layout_.offset(id), input_layout_.capacity(id)};
    }
    const WeightStores& weights() const { return weights_; }

    // Replace the adapters, control vector and edits of all later runs; see Steering.
    const Steering& steering() const { return steering_; }
    void use_adapters(BySequence<std::vector<ScaledAdapter>> adapters);
    // `vectors`: [n_layers, width]; empty removes the control vector.
    void use_control(std::span<const float> vectors);
    // The edits apply in this order.
    void use_edits(std::vector<NamedEdit> edits);
    // Copies the rows of the active edits to their input, unless it has them.
    void write_edit_rows();

    // Writes the input of an adapter for rows whose tokens may use different adapters: the scale of
    // each row, or which rows use the adapter. `sequences_of(row)`: those of the row's token.
    void write_adapter_rows(InputId id, size_t n,
                            const std::function<std::span<const SequenceId>(size_t)>& sequences_of);

    // `editor`: required if the plan has edits.
    void run(Plan& plan, const Counts& counts, float* logits, float* embeddings, StopSignal* stop,
             Editor* editor = nullptr);
    uint64_t arena_bytes() const { return arenas_.bytes(); }
    uint64_t compute_bytes() const { return arenas_.bytes() + inputs_.bytes(); }
    std::vector<NodeInfo> describe(const Plan& plan) const;

    // Traces every run until take_trace(). Throws InvalidArgument if another trace is active.
    void start_trace();
    std::vector<TracedNode> take_trace();

private:
    friend class Plans;
    Plan& plan(const PlanKey& key, const Storage& storage);
    std::unique_ptr<Plan> build(const PlanKey& key, const Storage& storage);
    Graph graph_of(const PlanKey& key, const MemoryLayout& layout) const;

    // A range of the input buffer.
    struct InputRange {
        uint64_t offset, bytes;
    };
    void record_trace(const Plan& plan);
    void record_written(InputRange written);
    void write_bytes(InputId id, std::span<const std::byte> bytes);
    std::byte* input_bytes(InputId id, size_t bytes);
    // Adds inputs 0 to n - 1 of `field` to the layout, except those that it already has.
    void add_inputs(InputField field, size_t n, uint64_t bytes);
    void add_inputs(std::span<const InputId> ids, uint64_t bytes);
    std::vector<InputRange> inputs_to_keep() const;

    std::shared_ptr<const LoadedModel> model_;
    DeviceSet devices_;
    EngineLimits limits_;
    WeightStores weights_;
    Steering steering_;
    bool has_edit_rows_ = true;  // the input edit_rows has the rows of the active edits
    InputLayout input_layout_;
    DeviceBuffers inputs_;
    std::vector<InputRange> written_;  // since the last run
    uint32_t used_devices_ = 0;
    DeviceBuffers arenas_;
    PlanCache plans_;
    std::unique_ptr<Plan> single_use_;  // the last plan built with reuse off
    OutputPool outputs_;
    Stats stats_;
    std::vector<std::vector<ValueName>> capture_sets_{{}};  // by index
    std::unique_ptr<Trace> trace_;                          // null unless tracing
    std::vector<TracedNode> traced_;
};

// The plans of one memory: an engine bound to the buffers that its plans read and write.
class Plans {
public:
    Plans(Engine& engine, const Storage& storage) : engine_(engine), storage_(storage) {}

    Engine& engine() const { return engine_; }
    const Storage& storage() const { return storage_; }
    const MemoryLayout& layout() const { return storage_.layout(); }

    // Returns the plan for `key` from the cache, or builds it. Counts the hit, or the miss and its
    // reason.
    Plan& get(const PlanKey& key) const { return engine_.plan(key, storage_); }
    // Builds a plan outside the cache; the caller owns it. Grows the arenas to fit it.
    std::unique_ptr<Plan> build(const PlanKey& key) const { return engine_.build(key, storage_); }
    // Builds the plan of the largest step into the cache, so that no later step allocates arena
    // memory. Also packs the weights.
    void reserve(const PlanKey& key) const;

    // Returns the graph of that key with the active steering, before any compilation.
    Graph graph(const PlanKey& key) const;
    // Returns the named values of that graph.
    std::vector<Engine::ValueInfo> values(const PlanKey& key) const;
    // True if that graph reads the weight.
    bool uses(const PlanKey& key, WeightId weight) const;
    // Returns the weights of that graph that adapters can change.
    std::vector<WeightId> adaptable(const PlanKey& key) const {
        return adaptable_weights(engine_.graph_of(key, layout()));
    }

private:
    Engine& engine_;
    const Storage& storage_;
};

}  // namespace plait
