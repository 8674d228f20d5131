// What runs a context's graphs: one backend, its plans, and the buffers that every plan shares.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "graph/capture.h"
#include "memory/layout.h"
#include "plan/plan_cache.h"
#include "runtime/loaded_model.h"
#include "runtime/steering/steering.h"
#include "runtime/step/graph_info.h"
#include "runtime/step/output_pool.h"
#include "runtime/step/stats.h"

namespace plait {

// The largest step that a context can be asked for.
struct EngineLimits {
    uint32_t n_tokens = 512;  // of a piece
    uint32_t n_sequences = 1;
    uint32_t n_rows = 4096;  // cache rows a step can list
    BuildOptions build;
    bool reuse = true;
    bool fuse = true;
};

class Engine {
public:
    static constexpr uint32_t kMaxMoves = 1024;  // rows of one copy_rows or shift_keys run

    Engine(std::shared_ptr<const LoadedModel> model, DeviceSet devices, const MemoryLayout& layout,
           const EngineLimits& limits);

    // Where each input of a context's steps goes.
    static InputLayout input_layout(const MemoryLayout& memory, const EngineLimits& limits,
                                    int64_t width);

    DeviceSet& device_set() { return devices_; }
    // Those that plans compute on.
    std::vector<std::string> devices() const;
    OutputPool& outputs() { return outputs_; }
    Stats& stats() { return stats_; }
    const EngineLimits& limits() const { return limits_; }

    // The plan of this key, built if it is not known. Counts the hit, or the miss and its reason.
    Plan& plan(const PlanKey& key, const MemoryLayout& layout, std::span<Buffer* const> storage);
    // A plan for whoever keeps it himself. Makes the arena as large as it needs.
    std::unique_ptr<Plan> build(const PlanKey& key, const MemoryLayout& layout,
                                std::span<Buffer* const> storage);
    // Builds a plan of the largest step and makes the arena that large, so that no later step
    // allocates. Packs the weights on the way.
    void reserve(const PlanKey& key, const MemoryLayout& layout, std::span<Buffer* const> storage);

    // Writes one input of the next run.
    template <typename T>
    void write(InputId id, std::span<const T> values) {
        write_bytes(id, std::as_bytes(values));
    }
    // Where the bytes of an input go, for those that are computed in place.
    template <typename T>
    std::span<T> in_place(InputId id, size_t n) {
        return {reinterpret_cast<T*>(input_bytes(id, n * sizeof(T))), n};
    }

    // What a model calls values of such a step, and what they are: axis 0 is a capacity.
    struct ValueInfo {
        ValueName name;
        TensorType type;
    };
    std::vector<ValueInfo> values(const PlanKey& key, const MemoryLayout& layout) const;
    // The weights of such a step that adapters can change.
    std::vector<WeightId> adaptable(const PlanKey& key, const MemoryLayout& layout) const;
    // The number of a set of names, for PlanKey::captures; equal sets have one number, none is 0.
    uint16_t capture_set(const std::vector<ValueName>& names);
    std::span<const ValueName> captures(uint16_t set) const { return capture_sets_[set]; }
    const DeviceBuffers& arenas() const { return arenas_; }

    // What is added to the model from now on; see Steering.
    const Steering& steering() const { return steering_; }
    void use_adapters(std::vector<ScaledAdapter> adapters);
    // [n_layers, width]; nothing: none.
    void use_control(std::span<const float> vectors);
    void use_edits(std::vector<ValueName> names, std::vector<std::shared_ptr<ValueEdit>> edits) {
        steering_.use_edits(std::move(names), std::move(edits));
    }

    // `editor`: of plans with edits.
    void run(Plan& plan, const Counts& counts, float* logits, float* embeddings, StopSignal* stop,
             Editor* editor = nullptr);
    uint64_t arena_bytes() const { return arenas_.bytes(); }
    uint64_t compute_bytes() const { return arenas_.bytes() + inputs_.bytes(); }
    std::vector<NodeInfo> describe(const Plan& plan) const;

    // Notes what runs when from now on, until it is taken.
    void start_trace();
    std::vector<TracedNode> take_trace();

private:
    // A stretch of the inputs.
    struct Written {
        uint64_t offset, bytes;
    };
    void note_trace(const Plan& plan);
    void note_written(Written written);
    void write_bytes(InputId id, std::span<const std::byte> bytes);
    std::byte* input_bytes(InputId id, size_t bytes);
    // Makes room for `n` inputs, numbered as groups, where there is none.
    void add_inputs(InputField field, size_t n, uint64_t bytes);

    std::shared_ptr<const LoadedModel> model_;
    DeviceSet devices_;
    EngineLimits limits_;
    WeightStores weights_;
    Steering steering_;
    InputLayout input_layout_;
    DeviceBuffers inputs_;
    std::vector<Written> written_;  // since the last run
    uint32_t used_devices_ = 0;     // bit d: a plan computes on device d
    DeviceBuffers arenas_;
    PlanCache plans_;
    std::unique_ptr<Plan> single_use_;  // the last plan built with reuse off
    OutputPool outputs_;
    Stats stats_;
    std::vector<std::vector<ValueName>> capture_sets_{{}};  // by number
    std::unique_ptr<Trace> trace_;                          // null: nobody asks
    std::vector<TracedNode> traced_;
};

}  // namespace plait
