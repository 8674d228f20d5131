// A 64-bit hash for keys in memory. Not for untrusted input and not for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace plait {

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

}  // namespace plait
