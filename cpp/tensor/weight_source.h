// The source of a model's weights, from which a backend packs them tensor by tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/tensor.h"

namespace plait {

using WeightId = uint32_t;

// Where a backend may keep packed copies of the weights for other processes.
struct KeptCopies {
    std::string folder;      // empty: nowhere
    uint64_t min_bytes = 0;  // copies of smaller models are not kept
    std::string identity;    // differs between models and changes with them
};

// Implementations are immutable and thread-safe.
class WeightSource {
public:
    virtual ~WeightSource() = default;
    virtual size_t count() const = 0;
    virtual const std::string& name(WeightId id) const = 0;
    virtual const TensorType& type(WeightId id) const = 0;
    // Copies bytes [begin, begin + target.size()) of the tensor as the file stores them, row by
    // row.
    virtual void read(WeightId id, uint64_t begin, std::span<std::byte> target) const = 0;
    virtual KeptCopies kept_copies() const { return {}; }
};

}  // namespace plait
