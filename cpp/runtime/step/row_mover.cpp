#include "runtime/step/row_mover.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "runtime/devices/place_layers.h"
#include "runtime/step/engine.h"

namespace plait {
namespace {

// Fills the two inputs of a plan pair by pair, and runs the plan whenever they are full.
class MoveList {
public:
    MoveList(Engine& engine, Plan& plan, InputId first, InputId second)
        : engine_(engine), plan_(plan), first_id_(first), second_id_(second) {
        open();
    }

    void add(int32_t first, int32_t second) {
        first_[n_] = first;
        second_[n_] = second;
        if (++n_ == kMaxMovesPerRun) flush();
    }
    void flush() {
        if (n_ == 0) return;
        const Counts counts{.moves = static_cast<int32_t>(n_)};
        n_ = 0;
        engine_.run(plan_, counts, nullptr, nullptr, nullptr);
        open();
    }

private:
    void open() {
        first_ = engine_.in_place<int32_t>(first_id_, kMaxMovesPerRun);
        second_ = engine_.in_place<int32_t>(second_id_, kMaxMovesPerRun);
    }

    Engine& engine_;
    Plan& plan_;
    InputId first_id_, second_id_;
    std::span<int32_t> first_;
    std::span<int32_t> second_;
    uint32_t n_ = 0;
};

// Logs the moves. Drops log records instead of throwing, since the memory has already changed.
void log_moves(std::span<const RowMove> moves) noexcept {
    if (!log_enabled(LogLevel::trace)) return;
    try {
        for (const RowMove& move : moves)
            log(LogLevel::trace, text("cache: cells ", move.from, " to ", move.from + move.n - 1,
                                      " copied to ", move.to, " to ", move.to + move.n - 1));
    } catch (const std::bad_alloc&) {
    }
}

}  // namespace

std::unique_ptr<Plan> RowMover::make_plan(uint8_t group, GraphKind kind) {
    PlanKey key;
    key.kind = kind;
    key.group = group;
    key.output = OutputKind::none;
    key.n_moves = kMaxMovesPerRun;
    return plans_.build(key);
}

void RowMover::prepare() {
    const size_t n_groups = plans_.layout().groups.size();
    if (rotations_.size() == n_groups) return;
    std::vector<std::unique_ptr<Plan>> copies(n_groups);
    std::vector<std::unique_ptr<Plan>> rotations(n_groups);
    for (uint8_t group = 0; group < n_groups; ++group) {
        if (!plans_.layout().groups[group].kind->has_cells) continue;
        copies[group] = make_plan(group, GraphKind::copy_rows);
        if (plans_.layout().rotates_keys(group))
            rotations[group] = make_plan(group, GraphKind::shift_keys);
    }
    copies_ = std::move(copies);
    rotations_ = std::move(rotations);
}

void RowMover::copy(std::span<const RowMove> moves) {
    log_moves(moves);
    for (uint8_t group = 0; group < plans_.layout().groups.size(); ++group) {
        if (std::ranges::find(moves, group, &RowMove::group) == moves.end()) continue;
        PLAIT_CHECK(group < copies_.size() && copies_[group]);
        MoveList list(plans_.engine(), *copies_[group], {InputField::from_rows, group},
                      {InputField::to_rows, group});
        for (const RowMove& move : moves) {
            if (move.group != group) continue;
            for (int32_t i = 0; i < move.n; ++i) list.add(move.from + i, move.to + i);
            plans_.engine().stats().rows_copied += static_cast<uint64_t>(move.n);
        }
        list.flush();
    }
}

void RowMover::rotate(std::span<const KeyShift> shifts) {
    for (uint8_t group = 0; group < plans_.layout().groups.size(); ++group) {
        if (std::ranges::find(shifts, group, &KeyShift::group) == shifts.end()) continue;
        PLAIT_CHECK(group < rotations_.size() && rotations_[group]);
        MoveList list(plans_.engine(), *rotations_[group], {InputField::to_rows, group},
                      {InputField::deltas, group});
        for (const KeyShift& shift : shifts)
            if (shift.group == group) list.add(shift.row, shift.delta);
        list.flush();
    }
}

uint64_t RowMover::row_bytes(uint8_t group) const {
    uint64_t bytes = 0;
    for (const StorageInfo& storage : plans_.layout().storage)
        if (storage.group == group) bytes += storage.row_bytes;
    return bytes;
}

}  // namespace plait
