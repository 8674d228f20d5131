// Counter-based random numbers: each number is a function of seed, sequence, step and purpose.
// There is no generator state, so a sequence's numbers do not depend on draws for other sequences.
//
// Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace plait::sampling {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The purpose of a random number within a step.
enum class Draw : uint32_t { token = 0, xtc = 1 };

// Uniform in [0, 1), 53 bits. The key is the seed, the counter (step, purpose, sequence).
double uniform(uint64_t seed, uint64_t sequence, uint64_t step, Draw purpose);

}  // namespace plait::sampling
