// Session: saved states, rewind and defragmentation.
#include "base/error.h"
#include "base/text.h"
#include "runtime/session.h"

namespace plait {

void Session::check_sequence(std::optional<SequenceId> sequence) const {
    if (sequence) check_sequence(*sequence);
}

void Session::save_state(std::optional<SequenceId> sequence, const ByteSink& sink) {
    check_sequence(sequence);
    decode_runner_->apply_shifts();
    plait::save_state(*decode_runner_->stored(), facts_, active_changes(sequence), sequence, sink);
}

void Session::load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to,
                         const AllowSequence& allow) {
    check_sequence(to);
    plait::load_state(*decode_runner_->stored(), facts_, active_changes(to), bytes, to, allow);
}

void Session::copy_state_to(Session& other) {
    check_facts(facts_, other.facts_);
    check_active(active_changes({}), other.active_changes({}));
    decode_runner_->apply_shifts();
    copy_state(*decode_runner_->stored(), *other.decode_runner_->stored());
}

Position Session::rewind(SequenceId sequence, Position next) {
    check_sequence(sequence);
    check_range({.begin = next});
    RewindPoint point;
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        point = memory.rewind_point(sequence, next);
        if (point.from == sequence) {
            PLAIT_CHECK(memory.remove(sequence, {.begin = point.next}));
            return;
        }
        memory.refork(point, sequence, moves);
    });
    return point.next;
}

DefragReport Session::defrag(std::optional<int64_t> max_moves) {
    if (max_moves && *max_moves < 1)
        throw InvalidArgument(text("max_moves: expected at least 1, got ", *max_moves));
    return decode_runner_->defragment(max_moves.value_or(kMaxMovesPerRun));
}

}  // namespace plait
