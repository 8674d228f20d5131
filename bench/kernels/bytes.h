// A weight of one type, for benchmarks of products.
#pragma once

#include <cstddef>
#include <string>

#include "tensor/weight_source.h"

namespace plait {

// All bytes are the same, since no kernel's speed depends on the values.
class Bytes final : public WeightSource {
public:
    explicit Bytes(TensorType type) : type_(type) {}
    size_t count() const override { return 1; }
    const std::string& name(WeightId) const override { return name_; }
    const TensorType& type(WeightId) const override { return type_; }
    void read(WeightId, uint64_t begin, std::span<std::byte> target) const override {
        for (size_t i = 0; i < target.size(); ++i)
            target[i] = static_cast<std::byte>((begin + i) * 37 >> 3 & 0x3b);
    }

private:
    std::string name_ = "w";
    TensorType type_;
};

}  // namespace plait
