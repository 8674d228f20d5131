// The bytes of a saved state. Equal contents give equal bytes, and every byte is covered by a
// checksum. Integers are little endian, nothing is padded.
//
//   "\x89PLAITKV"  u32 version  u32 sections  u64 bytes in all
//   for each section: u32 kind, u64 bytes, u64 checksum of them
//   u64 checksum of all before
//   the sections, one after the other: facts, adapters, contents, then the rows of each storage
//
//   facts:     u32 n, n times: string name, string value       string: u32 bytes, UTF-8
//   adapters:  u32 n, n times: string what, f32 scale: what was added to the model, see ActivePart
//   contents:  MemoryState, field by field; lists as u32 n and n times i32
//   rows:      those of the items, in order, as the storage holds them
//
// Checksums are base/checksum.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/state.h"
#include "runtime/state/facts.h"
#include "runtime/steering/steering.h"

namespace plait {

inline constexpr uint32_t kStateVersion = 1;
inline constexpr size_t kStateHeaderBytes = 24;

// A state of which the rows are still to be written: first `bytes()` are found, then each storage
// fills its part, then seal().
class StateImage {
public:
    // `row_bytes`: what the items of each storage take.
    StateImage(const Facts& facts, const std::vector<ActivePart>& active, const MemoryState& memory,
               std::vector<uint64_t> row_bytes);

    uint64_t bytes() const;
    // Where the rows of one storage go. `target` has bytes() bytes.
    std::span<std::byte> rows(std::span<std::byte> target, size_t storage) const;
    // Everything but the rows, which are there by now.
    void seal(std::span<std::byte> target) const;

private:
    std::vector<std::vector<std::byte>> sections_;  // before the rows
    std::vector<uint64_t> row_bytes_;
};

// A state read and found whole. Rows are views of the bytes it was read from.
struct StateReading {
    Facts facts;
    std::vector<ActivePart> active;
    MemoryState memory;
    std::vector<std::span<const std::byte>> rows;  // by storage
};

// StateError where the bytes are no state, a damaged or cut one, or of another version.
StateReading read_state(std::span<const std::byte> bytes);

// How long a state claims to be, by its first kStateHeaderBytes; `bytes` may have less.
uint64_t read_state_bytes(std::span<const std::byte> bytes);

}  // namespace plait
