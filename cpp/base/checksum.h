// XXH64 with seed 0, for files. Detects damage, not tampering.
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace plait {

uint64_t checksum(std::span<const std::byte> bytes);

inline uint64_t checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

}  // namespace plait
