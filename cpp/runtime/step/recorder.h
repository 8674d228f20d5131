// Collects captured values: for each call and name, the rows in batch order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "batch/split.h"
#include "graph/capture.h"
#include "plan/plan.h"
#include "runtime/step/attention_pattern.h"

namespace plait {

// The rows of one name in one call; empty if the call did not compute the value.
struct Captured {
    std::vector<float> values;  // [n_rows, ...]
    Shape shape;
    // Of attn_pattern instead of `values`: for each row, [n_heads, n_keys]. `shape` is [n_rows,
    // n_heads].
    std::vector<std::vector<float>> patterns;
};
using CapturedCall = std::vector<Captured>;  // indexed like the names of the set

// Receives captured calls instead of Recorder::take().
class CaptureSink {
public:
    virtual ~CaptureSink() = default;
    // Called at the end of each call, before it is committed. An exception ends the call.
    virtual void write(CapturedCall call) = 0;
};

class Recorder {
public:
    // What a capture records.
    struct Target {
        uint16_t set = 0;  // index of the set of names; 0: nothing
        size_t n_names = 0;
        std::shared_ptr<CaptureSink> sink;            // may be null
        std::map<size_t, AttentionPattern> patterns;  // by index of the name
    };
    // Records later calls.
    void start(Target target);
    // Stops recording. The caller destroys the sink.
    std::shared_ptr<CaptureSink> stop();
    uint16_t set() const { return target_.set; }
    bool active() const { return target_.set != 0; }

    // For each call: begin(), add() after the run of each microbatch, commit(). Calls without
    // commit() are discarded.
    void begin(const PreparedBatch& batch);
    // `keys_of`: returns the keys that the microbatch has seen in a cache, by its index.
    void add(const Plan& plan, const Microbatch& microbatch, const DeviceBuffers& arenas,
             std::span<const float* const> outputs,
             const std::function<MicrobatchKeys(uint32_t cache)>& keys_of);
    void commit();

    std::vector<CapturedCall> take() { return std::exchange(calls_, {}); }

private:
    const float* rows_of(const CapturedPlace& place, size_t n_floats, const DeviceBuffers& arenas,
                         std::span<const float* const> outputs);
    void add_patterns(const AttentionPattern& pattern, const MicrobatchKeys& keys,
                      std::span<const float> queries, Captured& captured) const;

    Target target_;
    CapturedCall call_;
    std::vector<CapturedCall> calls_;
    int64_t n_tokens_ = 0, n_outputs_ = 0;
    std::vector<Position> positions_;  // by batch entry
    std::vector<uint32_t> output_of_;  // by batch entry: number of outputs before it
    std::vector<float> read_;          // scratch: rows of one value, read from the arena
};

}  // namespace plait
