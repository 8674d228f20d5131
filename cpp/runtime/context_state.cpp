// Context: saved states, rewind and defragmentation.
#include "base/error.h"
#include "base/text.h"
#include "runtime/context.h"
#include "runtime/state/state_file.h"
#include "runtime/state/state_format.h"

namespace plait {
namespace {

template <typename Call>
auto with_path(const std::string& path, Call call) {
    try {
        return call();
    } catch (const StateNotFound& error) {
        throw StateNotFound(text(path.c_str(), ": ", error.what()));
    } catch (const StateError& error) {
        throw StateError(text(path.c_str(), ": ", error.what()));
    }
}

}  // namespace

void Context::check_sequence(std::optional<SequenceId> sequence) const {
    if (sequence) check_sequence(*sequence);
}

void Context::save_state(std::optional<SequenceId> sequence, const MakeRoom& make_room) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(sequence);
    runner.apply_shifts();
    plait::save_state(*runner.stored(), facts_, engine_->steering().active(), sequence, make_room);
}

void Context::load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to,
                         const AllowSequence& allow) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(to);
    plait::load_state(*runner.stored(), facts_, engine_->steering().active(), bytes, to,
                      allow);
}

// Files are read and written without the lock, so that other threads can use the context.
void Context::save_file(const std::string& path, std::optional<SequenceId> sequence) {
    FileBytes bytes;
    save_state(sequence, [&](uint64_t n) {
        bytes = {std::make_unique_for_overwrite<std::byte[]>(n), n};
        return std::span(bytes.data.get(), n);
    });
    with_path(path, [&] { write_file(path, bytes.view()); });
}

void Context::load_file(const std::string& path, std::optional<SequenceId> to,
                        const AllowSequence& allow) {
    const FileBytes bytes =
        with_path(path, [&] { return read_file(path, kStateHeaderBytes, read_state_bytes); });
    with_path(path, [&] { load_state(bytes.view(), to, allow); });
}

void Context::copy_state_to(Context& other) {
    if (this == &other) {
        const std::lock_guard alone(mutex_);
        decode_runner();
        return;
    }
    const std::scoped_lock both(mutex_, other.mutex_);
    StepRunner& from = decode_runner();
    StepRunner& to = other.decode_runner();
    check_facts(facts_, other.facts_);
    check_active(engine_->steering().active(), other.engine_->steering().active());
    from.apply_shifts();
    copy_state(*from.stored(), *to.stored());
}

Position Context::rewind(SequenceId sequence, Position next) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(sequence);
    check_range({.begin = next});
    RewindPoint point;
    runner.edit([&](Memory& memory, std::vector<RowMove>& moves) {
        point = memory.rewind_point(sequence, next);
        if (point.from == sequence) {
            PLAIT_CHECK(memory.remove(sequence, {.begin = point.next}));
            return;
        }
        memory.refork(point, sequence, moves);
    });
    return point.next;
}

DefragReport Context::defrag(std::optional<int64_t> max_moves) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    if (max_moves && *max_moves < 1)
        throw InvalidArgument(text("max_moves: expected at least 1, got ", *max_moves));
    return runner.defragment(max_moves.value_or(kMaxMovesPerRun));
}

std::optional<DefragReport> Context::last_defrag() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().last_defrag();
}

double Context::fragmentation() const {
    const std::lock_guard lock(mutex_);
    return plait::fragmentation(decode_runner().memory().count_runs());
}

}  // namespace plait
