// Counter-based random numbers: each number is a function of seed, sequence, step and purpose.
// There is no generator state, so a sequence's numbers do not depend on draws for other sequences.
//
// Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace plait::sampling {

constexpr uint32_t low_word(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high_word(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

// Returns four random words for a counter and a key.
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
        c = {high_word(b) ^ c[1] ^ key[0], low_word(b), high_word(a) ^ c[3] ^ key[1], low_word(a)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return c;
}

// The purpose of a random number within a step.
enum class Draw : uint32_t { token = 0, xtc = 1 };

// Uniform in [0, 1), 53 bits. The key is the seed, the counter (step, purpose, sequence).
inline double uniform(uint64_t seed, uint64_t sequence, uint64_t step, Draw purpose) {
    // A sequence has fewer than 2^62 steps; the purpose takes the two highest bits.
    const uint64_t counter = step | static_cast<uint64_t>(purpose) << 62;
    const auto bits =
        philox({low_word(counter), high_word(counter), low_word(sequence), high_word(sequence)},
               {low_word(seed), high_word(seed)});
    const uint64_t wide = uint64_t{bits[0]} << 32 | bits[1];
    return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace plait::sampling
