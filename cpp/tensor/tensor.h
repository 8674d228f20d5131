// The type and shape of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace plait {

// Up to four dimensions, outermost first, as in NumPy: [n_tokens, n_heads, head_dim].
// GGUF stores the innermost first; the GGUF reader reverses the order.
struct Shape {
    static constexpr int kMaxRank = 4;

    Shape() = default;
    Shape(std::initializer_list<int64_t> sizes) {
        PLAIT_CHECK(sizes.size() <= kMaxRank);
        for (const int64_t size : sizes) dims[rank++] = size;
    }

    // Negative axes count from the end.
    int64_t operator[](int axis) const {
        const int i = axis < 0 ? axis + rank : axis;
        PLAIT_CHECK(i >= 0 && i < rank);
        return dims[static_cast<size_t>(i)];
    }
    int64_t elements() const {
        int64_t n = 1;
        for (int i = 0; i < rank; ++i) n *= dims[static_cast<size_t>(i)];
        return n;
    }
    friend bool operator==(const Shape&, const Shape&) = default;

    std::array<int64_t, kMaxRank> dims{};
    uint8_t rank = 0;
};

std::string to_string(const Shape& shape);  // "[3, 4]"

struct TensorType {
    DType dtype = DType::f32;
    Shape shape;

    uint64_t bytes() const;  // the last axis must consist of whole blocks
    friend bool operator==(const TensorType&, const TensorType&) = default;
};

std::string to_string(const TensorType& type);  // "F32 [3, 4]"

}  // namespace plait
