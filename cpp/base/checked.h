// Arithmetic on untrusted sizes. Returns nullopt on overflow.
#pragma once

#include <cstdint>
#include <optional>

namespace plait {

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
    uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
    return sum;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    return product;
}

// `alignment` must be a power of two.
inline std::optional<uint64_t> checked_align(uint64_t value, uint64_t alignment) {
    const auto padded = checked_add(value, alignment - 1);
    if (!padded) return std::nullopt;
    return *padded & ~(alignment - 1);
}

// Without an overflow check, for validated sizes.
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

}  // namespace plait
