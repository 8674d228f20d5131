// Rows as a cache stores them, by the scalar arithmetic of the definition.
#pragma once

#include <cstring>

#include "tensor/blocks/closest.h"
#include "tensor/convert.h"

namespace plait::test {

template <typename Block>
void encode_closest_row(const float* source, std::byte* target, uint64_t elements) {
    for (uint64_t i = 0; i < elements; i += 32) {
        Block block;
        encode_closest(source + i, block);
        std::memcpy(target + i / 32 * sizeof(block), &block, sizeof(block));
    }
}

inline void store_row(DType dtype, const float* source, std::byte* target, uint64_t elements) {
    switch (dtype) {
    case DType::q4_0: return encode_closest_row<BlockQ4_0>(source, target, elements);
    case DType::q4_1: return encode_closest_row<BlockQ4_1>(source, target, elements);
    case DType::q5_0: return encode_closest_row<BlockQ5_0>(source, target, elements);
    case DType::q5_1: return encode_closest_row<BlockQ5_1>(source, target, elements);
    case DType::iq4_nl: return encode_closest_row<BlockIQ4_NL>(source, target, elements);
    default: return quantize(dtype, source, target, elements);
    }
}

}  // namespace plait::test
