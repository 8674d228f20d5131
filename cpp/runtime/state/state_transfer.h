// What a road remembers, to bytes and back, or to another road; `active`: what is added to its model.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "runtime/state/facts.h"
#include "runtime/step/step_runner.h"

namespace plait {

// Hands out the bytes that a state goes to; called once, when it is known how many.
using MakeRoom = std::function<std::span<std::byte>(uint64_t bytes)>;

// One sequence or all. Pending shifts are applied first.
void save_state(StepRunner& runner, const Facts& facts, const std::vector<ActivePart>& active,
                std::optional<SequenceId> sequence, const MakeRoom& make_room);

// In place of everything, or of the sequence `to` (nothing: the one that was saved). StateError or
// CacheFull, and nothing has changed.
void load_state(StepRunner& runner, const Facts& facts, const std::vector<ActivePart>& active,
                std::span<const std::byte> bytes, std::optional<SequenceId> to);

// StateError where a state was made with other adapters or another control vector.
void check_active(const std::vector<ActivePart>& state, const std::vector<ActivePart>& here);

// All that `from` holds in place of all that `to` holds. Errors are those of load_state().
void copy_state(StepRunner& from, StepRunner& to);

}  // namespace plait
