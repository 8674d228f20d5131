#include "memory/row_placement.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/window.h"

namespace plait {

void RowPlacement::place(const PreparedBatch& batch, std::span<const Microbatch> microbatches) {
    PLAIT_CHECK(!in_step());
    check_capacity(batch);
    first_token_.assign(1, 0);
    first_sequence_.assign(1, 0);
    rows_.clear();
    causal_end_.clear();
    n_keys_.clear();
    try {
        for (const Microbatch& microbatch : microbatches) {
            for (const uint32_t entry : microbatch.entries) {
                const auto ids = batch.sequences_of(entry);
                rows_.push_back(table_.append(ids, batch.positions_of(entry)));
                causal_end_.push_back(table_.n_keys(ids[0]));
            }
            for (const SequenceId s : microbatch.sequences) n_keys_.push_back(table_.n_keys(s));
            first_token_.push_back(rows_.size());
            first_sequence_.push_back(n_keys_.size());
        }
    } catch (...) {
        table_.rollback();
        throw;
    }
    microbatches_ = microbatches;
    both_directions_ = batch.source.both_directions;
}

// Each token takes exactly one row, even if several sequences share it, so comparing counts
// suffices.
void RowPlacement::check_capacity(const PreparedBatch& batch) {
    n_added_.resize(static_cast<size_t>(table_.n_sequences()));
    for (const SequenceId s : batch.touched) n_added_[static_cast<size_t>(s)] = 0;
    for (const SequenceId s : batch.sequences) ++n_added_[static_cast<size_t>(s)];
    for (const SequenceId s : batch.touched) {
        const int64_t needed = n_added_[static_cast<size_t>(s)];
        const int64_t free = n_ctx_ - table_.n_keys(s);
        if (needed > free)
            throw CacheFull(text("sequence ", s, " needs ", needed, " more cells, ", free,
                                 " of its n_ctx = ", n_ctx_, " are free"),
                            needed, free);
        const int64_t free_in_pool = table_.n_free(s);
        if (table_.n_pools() > 1 && needed > free_in_pool)
            throw CacheFull(text("sequence ", s, " needs ", needed, " more cells, ", free_in_pool,
                                 " of ", table_.rows_per_pool(), " in its stream are free"),
                            needed, free_in_pool);
    }
    if (table_.n_pools() > 1) return;
    const auto needed = static_cast<int64_t>(batch.size());
    const int64_t free = table_.n_free();
    if (needed > free)
        throw CacheFull(text("the batch needs ", needed, " cells, ", free, " of ", table_.n_rows(),
                             " are free"),
                        needed, free);
}

void RowPlacement::commit() noexcept {
    table_.commit();
    microbatches_ = {};
}

void RowPlacement::rollback() noexcept {
    table_.rollback();
    microbatches_ = {};
}

GroupView RowPlacement::view(const GroupInfo& group, bool causal, size_t index) {
    PLAIT_CHECK(index < microbatches_.size());
    const Microbatch& microbatch = microbatches_[index];
    const size_t n = microbatch.entries.size();
    const int32_t* const rows = rows_.data() + first_token_[index];
    const int32_t* const causal_end = causal_end_.data() + first_token_[index];
    const int32_t* const n_keys = n_keys_.data() + first_sequence_[index];

    causal = causal && (group.always_causal || !both_directions_);
    list_runs(microbatch.sequences, n_keys);
    first_.assign(n, 0);
    last_.assign(causal_end, causal_end + n);
    for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
        const SequenceId id = microbatch.sequences[s];
        const auto begin = static_cast<size_t>(microbatch.begin[s]);
        const auto end = static_cast<size_t>(microbatch.begin[s + 1]);
        if (!causal) std::fill(last_.data() + begin, last_.data() + end, n_keys[s]);
        if (group.window.kind == WindowKind::full) continue;
        for (size_t i = begin; i < end; ++i) {
            const auto seen = visible_positions(group.window, table_.position(rows[i]));
            if (seen.begin > 0)
                first_[i] = table_.first_key_from(id, static_cast<Position>(seen.begin));
            if (!causal && seen.last < INT32_MAX)
                last_[i] = std::min(
                    last_[i], table_.first_key_from(id, static_cast<Position>(seen.last + 1)));
        }
    }
    key_positions_.clear();
    key_begin_.clear();
    if (group.needs_key_positions) list_key_positions(microbatch.sequences, n_keys);
    return {
        .write_rows = {rows, n},
        .runs = runs_,
        .run_begin = run_begin_,
        .first = first_,
        .last = last_,
        .key_positions = key_positions_,
        .key_begin = key_begin_,
    };
}

// Lists the runs of the first n_keys[s] keys of each sequence, which exclude the keys of later
// microbatches.
void RowPlacement::list_runs(std::span<const SequenceId> sequences, const int32_t* n_keys) {
    runs_.clear();
    run_begin_.assign(1, 0);
    for (size_t s = 0; s < sequences.size(); ++s) {
        for (const Run& run : table_.runs(sequences[s])) {
            if (run.first_key >= n_keys[s]) break;
            runs_.push_back(run);
        }
        Run& last = runs_.back();
        last.count = std::min(last.count, n_keys[s] - last.first_key);
        run_begin_.push_back(static_cast<int32_t>(runs_.size()));
    }
}

void RowPlacement::list_key_positions(std::span<const SequenceId> sequences,
                                      const int32_t* n_keys) {
    key_begin_.push_back(0);
    for (size_t s = 0; s < sequences.size(); ++s) {
        const auto runs =
            std::span(runs_).subspan(static_cast<size_t>(run_begin_[s]),
                                     static_cast<size_t>(run_begin_[s + 1] - run_begin_[s]));
        for (const Run& run : runs)
            for (int32_t r = 0; r < run.count; ++r)
                key_positions_.push_back(table_.position(run.row + r));
        PLAIT_CHECK(key_positions_.size() == static_cast<size_t>(key_begin_.back() + n_keys[s]));
        key_begin_.push_back(static_cast<int32_t>(key_positions_.size()));
    }
}

}  // namespace plait
