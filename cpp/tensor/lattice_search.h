// The search for the points, signs and scales of blocks with values from a lattice.
#pragma once

#include "tensor/blocks/lattice.h"

namespace plait {

// Encode 256 values so that the sum of weights[i] * error^2 is small. All values are finite.
void encode_searched(const float* values, const float* weights, BlockIQ1_S& block);
void encode_searched(const float* values, const float* weights, BlockIQ1_M& block);
void encode_searched(const float* values, const float* weights, BlockIQ2_XXS& block);
void encode_searched(const float* values, const float* weights, BlockIQ2_XS& block);
void encode_searched(const float* values, const float* weights, BlockIQ2_S& block);
void encode_searched(const float* values, const float* weights, BlockIQ3_XXS& block);
void encode_searched(const float* values, const float* weights, BlockIQ3_S& block);

}  // namespace plait
