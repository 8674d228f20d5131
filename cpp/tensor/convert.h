// Conversion between float32 and the stored element types, in scalar reference arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace plait {

// All functions throw InvalidArgument unless `elements` is a multiple of the type's block size.
// Pointers need only the alignment of their C++ type. Every bit pattern is valid input, including
// NaN and infinities.

// Bit-identical to ggml and gguf-py. Throws UnsupportedError for i32.
void dequantize(DType dtype, const std::byte* source, float* target, uint64_t elements);

// For the types of tensor/blocks/expanded.h: value[i] = scales[i / 16] * (codes[i] - 64).
void expand(DType dtype, const std::byte* source, uint8_t* codes, float* scales, uint64_t elements);

// Bit-identical to ggml's reference quantiser on finite input for f32, f16, bf16 and the KV cache
// types q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl. Other types use quantize_search() with equal weights.
// Throws UnsupportedError for types that can only be read.
void quantize(DType dtype, const float* source, std::byte* target, uint64_t elements);
bool can_quantize(DType dtype);

}  // namespace plait
