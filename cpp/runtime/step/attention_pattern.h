// The weights of attention, computed on the host from a layer's queries and the keys of its cache.
//
//   p_j = softmax over j of cap(scale * q . k_j) + bias_j, for the keys j that a token sees
//
// No plan computes them as a value, so they are recomputed from captured queries; see ops::Attend.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "batch/split.h"
#include "graph/capture.h"
#include "memory/step_memory.h"
#include "runtime/devices/storage.h"

namespace plait {

// The attention of one layer over a cache.
struct PatternSource {
    ValueName name;      // of Role::attn_pattern
    NodeId queries = 0;  // [n, h, key_dim], as keys are without their Hadamard transform
    uint32_t keys = 0;   // index of the cache
    WeightId sinks = Weight::kNone;
    WeightId bias = Weight::kNone;
    AttendParams params{};
};

// Returns the attention over caches in the order of the graph.
std::vector<PatternSource> pattern_sources(const Graph& graph, const MemoryLayout& layout);

// Makes the queries of each name of Role::attn_pattern an output of the graph; see capture().
void capture_queries(Graph& graph, std::span<const ValueName> names, const MemoryLayout& layout);

// The keys that a microbatch has seen.
struct MicrobatchKeys {
    GroupView view;
    const Microbatch& microbatch;
    const Storage& storage;
};

class AttentionPattern {
public:
    // `weight`: returns the floats of a weight.
    AttentionPattern(const PatternSource& source,
                     const std::function<std::vector<float>(WeightId)>& weight);

    uint32_t keys() const { return source_.keys; }
    int n_heads() const { return source_.params.n_heads; }
    // Returns the weights of a token, [n_heads, n_keys], keys in the order of their positions.
    // `queries`: of the token, [n_heads, key_dim].
    std::vector<float> weights(const MicrobatchKeys& keys, size_t token, Position position,
                               std::span<const float> queries) const;

private:
    float bias(int head, int32_t distance) const;

    PatternSource source_;
    std::vector<float> sinks_;   // [n_heads]; empty if there are none
    std::vector<float> biases_;  // [n_heads, 2 * max_distance + 1]; empty unless in buckets
};

}  // namespace plait
