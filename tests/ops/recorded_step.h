// A step of a graph of single ops, as derivatives read it.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "cpp/support/random_weights.h"
#include "gradient/forward.h"
#include "tensor/convert.h"

namespace plait::test {

using Bytes = std::vector<std::byte>;

struct RecordedStep final : ForwardStep {
    Counts counts;
    std::map<NodeId, std::vector<float>> values;
    const std::vector<std::pair<InputId, Bytes>>* inputs = nullptr;
    std::shared_ptr<RandomWeights> weights;
    std::vector<std::pair<TensorType, Bytes>> caches;  // after the step

    int64_t rows(Extent extent) const override {
        if (extent == Extent::fixed) return 1;
        return extent == Extent::outputs ? counts.outputs : counts.tokens;
    }
    std::span<const float> value(NodeId node) const override { return values.at(node); }
    std::span<const std::byte> input(InputId id) const override {
        for (const auto& [known, bytes] : *inputs)
            if (known == id) return bytes;
        throw InternalError("no such input");
    }
    void read_weight(WeightId id, int64_t first_row, std::span<float> target) const override {
        const TensorType& type = weights->type(id);
        const uint64_t row = TensorType{type.dtype, {type.shape[-1]}}.bytes();
        dequantize(type.dtype, weights->bytes(id).data() + static_cast<uint64_t>(first_row) * row,
                   target.data(), target.size());
    }
    void read_cache(uint32_t storage, int32_t row, std::span<float> heads) const override {
        const auto& [type, bytes] = caches[storage];
        const uint64_t row_bytes = TensorType{type.dtype, {type.shape[1]}}.bytes();
        dequantize(type.dtype, bytes.data() + static_cast<uint64_t>(row) * row_bytes, heads.data(),
                   heads.size());
    }
    void check_stop() const override {}
};

}  // namespace plait::test
