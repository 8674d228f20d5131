// Collects captured values: of each call, the rows of each name in batch order.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "batch/split.h"
#include "graph/capture.h"
#include "plan/plan.h"

namespace plait {

// The rows of one name in one call; none where the call computed no such value.
struct Captured {
    std::vector<float> values;  // [n_rows, ...]
    Shape shape;
};
using CapturedCall = std::vector<Captured>;  // by name of the set

class Recorder {
public:
    // From now on calls are recorded under this number of a set of names; 0: none.
    void start(uint16_t set, size_t n_names);
    uint16_t set() const { return set_; }
    bool active() const { return set_ != 0; }

    // Of a call: begin, each piece after its run, commit. A call that is not committed is forgotten.
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
    std::vector<uint32_t> output_of_;  // by entry of the batch: how many before it ask for output
    std::vector<float> read_;          // rows of one value in the arena
};

}  // namespace plait
