// Hashes: one for keys in memory, one for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace plait {

// A 64-bit hash for keys in memory. Not for untrusted input and not for files.
class Hash {
public:
    Hash& add(uint64_t value) {
        state_ = (state_ ^ value) * 0x9E3779B97F4A7C15ull;
        state_ ^= state_ >> 32;
        return *this;
    }
    Hash& add(std::string_view bytes) {
        for (const char c : bytes) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
        return add(bytes.size());
    }
    uint64_t value() const { return state_; }

private:
    uint64_t state_ = 0xCBF29CE484222325ull;
};

// XXH64 with seed 0, for files. Detects damage, not tampering.
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
uint64_t checksum(std::span<const std::byte> bytes);

inline uint64_t checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

}  // namespace plait
