// What the derivatives of one step are computed from: the values, inputs, weights and cache rows
// that the step used.
#pragma once

#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace plait {

class ForwardStep {
public:
    virtual ~ForwardStep() = default;

    // The number of rows of an extent in this step; 1 for Extent::fixed.
    virtual int64_t rows(Extent extent) const = 0;
    // The rows of one of GradientPlan::kept, [rows, ...]. Valid as long as the step.
    virtual std::span<const float> value(NodeId node) const = 0;
    // The bytes of an input, at least as many as its type has for the rows of the step.
    virtual std::span<const std::byte> input(InputId id) const = 0;
    // Dequantises rows of a weight, beginning at `first_row`. A row is the last axis of its shape.
    virtual void read_weight(WeightId id, int64_t first_row, std::span<float> rows) const = 0;
    // Dequantises one row of a cache, [n_heads, head_dim], in the form that ops::Attend reads.
    virtual void read_cache(uint32_t storage, int32_t row, std::span<float> heads) const = 0;
    // Throws Interrupted if the call is to stop. Called about once per megabyte of weights.
    virtual void check_stop() const = 0;
};

}  // namespace plait
