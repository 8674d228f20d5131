// Converts the contents of a memory to bytes and back, and copies them to another memory. Pending
// key shifts of the source must have been applied before. `active`: the adapters and the control
// vector that the context adds to its model.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "runtime/devices/storage.h"
#include "runtime/facts.h"

namespace plait {

// Returns the buffer that receives a state of `bytes` bytes. Called once per state.
using ByteSink = std::function<std::span<std::byte>(uint64_t bytes)>;

// Called with a sequence that a state is about to replace although the caller did not name it.
// Throws to refuse.
using AllowSequence = std::function<void(SequenceId)>;

// Saves one sequence, or all of them.
void save_state(const StoredMemory& from, const Facts& facts,
                const std::vector<ActiveChange>& active, std::optional<SequenceId> sequence,
                const ByteSink& sink);

// Returns what the context adds to its model for these sequences.
using ActiveOf = std::function<std::vector<ActiveChange>(std::span<const SequenceId>)>;

// Replaces the sequence `to`. Without `to`, replaces the sequence that was saved, or everything if
// all sequences were saved. Throws StateError or CacheFull; the memory is then unchanged.
void load_state(StoredMemory& target, const Facts& facts, const ActiveOf& active,
                std::span<const std::byte> bytes, std::optional<SequenceId> to,
                const AllowSequence& allow);

// Throws StateError if a state was made with other adapters or another control vector.
void check_active(const std::vector<ActiveChange>& state, const std::vector<ActiveChange>& here);

// Replaces all contents of `to` with those of `from`. Throws what load_state() throws.
void copy_state(const StoredMemory& from, StoredMemory& to);

}  // namespace plait
