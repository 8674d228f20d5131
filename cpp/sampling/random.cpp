#include "sampling/random.h"

namespace plait::sampling {
namespace {

constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
        c = {high(b) ^ c[1] ^ key[0], low(b), high(a) ^ c[3] ^ key[1], low(a)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return c;
}

double uniform(uint64_t seed, uint64_t sequence, uint64_t step, Draw purpose) {
    // A sequence has fewer than 2^62 steps; the purpose takes the two highest bits.
    const uint64_t counter = step | static_cast<uint64_t>(purpose) << 62;
    const auto bits = philox({low(counter), high(counter), low(sequence), high(sequence)},
                             {low(seed), high(seed)});
    const uint64_t wide = uint64_t{bits[0]} << 32 | bits[1];
    return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace plait::sampling
