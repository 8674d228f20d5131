// Collects captured values: for each call and name, the rows in batch order.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "batch/split.h"
#include "graph/capture.h"
#include "plan/plan.h"

namespace plait {

// The rows of one name in one call; empty if the call did not compute the value.
struct Captured {
    std::vector<float> values;  // [n_rows, ...]
    Shape shape;
};
using CapturedCall = std::vector<Captured>;  // indexed like the names of the set

class Recorder {
public:
    // Records later calls with the set of names of this index; index 0 stops recording.
    void start(uint16_t set, size_t n_names);
    uint16_t set() const { return set_; }
    bool active() const { return set_ != 0; }

    // For each call: begin(), add() after the run of each microbatch, commit(). Calls without
    // commit() are discarded.
    void begin(const PreparedBatch& batch);
    void add(const Plan& plan, const Microbatch& microbatch, const DeviceBuffers& arenas,
             std::span<const float* const> outputs);
    void commit() { calls_.push_back(std::move(call_)); }

    std::vector<CapturedCall> take() { return std::exchange(calls_, {}); }

private:
    uint16_t set_ = 0;
    size_t n_names_ = 0;
    CapturedCall call_;
    std::vector<CapturedCall> calls_;
    int64_t n_tokens_ = 0, n_outputs_ = 0;
    std::vector<uint32_t> output_of_;  // by batch entry: number of outputs before it
    std::vector<float> read_;          // scratch: rows of one value, read from the arena
};

}  // namespace plait
