// Quantisers that search for the codes with the least weighted squared error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace plait {

// True for the block types that quantize_search() writes.
bool can_search(DType dtype);

// Quantises `n_rows` rows of `row` values each so that the sum of weights[i] * error^2 is small.
// `weights` are [row], finite and not negative, or null for equal weights. Throws InvalidArgument
// unless `row` is a multiple of the type's block size, and UnsupportedError unless
// can_search(dtype).
void quantize_search(DType dtype, const float* source, const float* weights, uint64_t row,
                     uint64_t n_rows, std::byte* target);

}  // namespace plait
