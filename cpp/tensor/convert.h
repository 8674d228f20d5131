// Between float32 and the stored element types, in scalar reference arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace plait {

// `elements` must be a multiple of the type's block (InvalidArgument). Neither pointer needs to be
// aligned beyond its own type. Every bit pattern is legal input, NaN and infinities included.

// Any type but i32 (UnsupportedError). Bit for bit what ggml and gguf-py make of the same bytes.
void dequantize(DType dtype, const std::byte* source, float* target, uint64_t elements);

// Of the types of tensor/blocks/expanded.h: value i is scales[i / 16] * (codes[i] - 64).
void expand(DType dtype, const std::byte* source, uint8_t* codes, float* scales, uint64_t elements);

// f32, f16, bf16, the types a KV cache can have, q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl, bit for bit ggml's
// reference quantiser on finite input; and q4_k and q6_k, by least squares (UnsupportedError
// otherwise).
void quantize(DType dtype, const float* source, std::byte* target, uint64_t elements);
bool can_quantize(DType dtype);

}  // namespace plait
