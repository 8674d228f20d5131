// The format of a saved state. Equal contents give equal bytes, and every byte is covered by a
// checksum. Integers are little-endian, without padding.
//
//   "\x89PLAITKV"  u32 version  u32 number of sections  u64 total bytes
//   for each section: u32 kind, u64 bytes, u64 checksum
//   u64 checksum of all bytes before this field
//   the sections in order: facts, adapters, contents, then the rows of each storage
//
//   facts:     u32 n, n times: string name, string value       string: u32 bytes, UTF-8
//   adapters:  u32 n, n times: string identity, f32 scale; see ActiveChange
//   contents:  the fields of MemoryState; a list is u32 n, n times i32
//   rows:      the rows of the items in order, in the format of the storage
//
// For checksums, see base/hash.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/state.h"
#include "runtime/facts.h"

namespace plait {

inline constexpr uint32_t kStateVersion = 1;
inline constexpr size_t kStateHeaderBytes = 24;

// Writes a state: allocate bytes() bytes, write the rows of each storage to rows(), then call
// seal().
class StateImage {
public:
    // `row_bytes`: total bytes of the rows of each storage.
    StateImage(const Facts& facts, const std::vector<ActiveChange>& active,
               const MemoryState& memory, std::vector<uint64_t> row_bytes);

    uint64_t bytes() const;
    // Returns the part of `target` for the rows of one storage. `target` has bytes() bytes.
    std::span<std::byte> rows(std::span<std::byte> target, size_t storage) const;
    // Writes everything except the rows. The rows must be complete, since seal() computes their
    // checksums.
    void seal(std::span<std::byte> target) const;

private:
    std::vector<std::vector<std::byte>> sections_;  // all sections except rows
    std::vector<uint64_t> row_bytes_;
};

// A parsed state whose checksums match. Rows are views of the bytes it was read from.
struct StateReading {
    Facts facts;
    std::vector<ActiveChange> active;
    MemoryState memory;
    std::vector<std::span<const std::byte>> rows;  // by storage
};

// Throws StateError if the bytes are not a state, are damaged or truncated, or have another
// version.
StateReading read_state(std::span<const std::byte> bytes);

// Returns the total size according to the first kStateHeaderBytes bytes of a state. Throws
// StateError if `bytes` has fewer or is not a state.
uint64_t read_state_bytes(std::span<const std::byte> bytes);

}  // namespace plait
