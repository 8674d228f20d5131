// Helpers that damage the bytes of a state and then correct its checksums, as a malicious file
// could.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "runtime/state/state_format.h"

namespace plait {

constexpr size_t kSectionEntryBytes = 20;

constexpr size_t state_head_bytes(size_t n_sections) {
    return kStateHeaderBytes + kSectionEntryBytes * n_sections + 8;
}

inline void put(std::vector<std::byte>& bytes, size_t at, auto value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

inline uint64_t section_bytes(std::span<const std::byte> bytes, size_t section) {
    uint64_t n = 0;
    std::memcpy(&n, bytes.data() + kStateHeaderBytes + kSectionEntryBytes * section + 4, 8);
    return n;
}

// Recomputes all checksums.
inline void reseal(std::vector<std::byte>& bytes, size_t n_sections) {
    size_t begin = state_head_bytes(n_sections);
    for (size_t i = 0; i < n_sections; ++i) {
        const uint64_t n = section_bytes(bytes, i);
        put(bytes, kStateHeaderBytes + kSectionEntryBytes * i + 12,
            checksum(std::span(bytes).subspan(begin, n)));
        begin += n;
    }
    const size_t head = state_head_bytes(n_sections) - 8;
    put(bytes, head, checksum(std::span(bytes).first(head)));
}

}  // namespace plait
