// RowTable: transactions.
//
// A transaction remembers the runs of a sequence when the sequence first changes, other than by
// added keys, and the number of its keys from the beginning. The rows of these runs keep their
// contents, because a row that was in use when the transaction began is not freed before it ends:
// if no sequence holds it any more, it is put on a list of dropped rows. Each row has the serial
// number of the last transaction at the time when it was taken, so that neither beginning nor
// committing a transaction visits rows that have not changed.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "memory/row_table.h"

namespace plait {

void RowTable::begin_transaction() {
    born_.resize(ref_counts_.size());
    next_dropped_.resize(ref_counts_.size());
    if (transactions_.size() == depth_) {
        Transaction added;
        added.saved.resize(sequences_.size());
        transactions_.push_back(std::move(added));
    }
    Transaction& transaction = transactions_[depth_++];
    transaction.serial = ++serial_;
    transaction.dropped = RowPool::kNone;
    for (size_t s = 0; s < sequences_.size(); ++s) {
        SavedSequence& saved = transaction.saved[s];
        saved.n_keys = sequences_[s].n_keys;
        saved.max_position = sequences_[s].max_position;
        saved.has_runs = false;
    }
}

void RowTable::commit_transaction() noexcept {
    Transaction& inner = transactions_[--depth_];
    Transaction* const outer = depth_ > 0 ? &transactions_[depth_ - 1] : nullptr;
    for (int32_t row = inner.dropped; row != RowPool::kNone;) {
        const int32_t next = next_dropped_[at(row)];
        if (is_kept(row)) {
            keep_dropped(*outer, row);
        } else {
            // Its shift no longer counts in n_shifted_.
            if (is_shifted(row)) ++n_shifted_;
            give(row);
        }
        row = next;
    }
    if (outer == nullptr) return;
    for (size_t s = 0; s < sequences_.size(); ++s) {
        if (!inner.saved[s].has_runs || outer->saved[s].has_runs) continue;
        // Before the inner transaction, keys were only added.
        SavedSequence& saved = outer->saved[s];
        saved.runs.swap(inner.saved[s].runs);
        cut_runs(saved.runs, saved.n_keys);
        saved.has_runs = true;
    }
}

void RowTable::roll_back_transaction() noexcept {
    Transaction& transaction = transactions_[depth_ - 1];
    // New references come first, so that no kept row is dropped in between.
    for (const SavedSequence& saved : transaction.saved)
        if (saved.has_runs)
            for (const Run& run : saved.runs)
                for (int32_t r = 0; r < run.count; ++r) add_reference(run.row + r);
    for (SequenceId s = 0; s < n_sequences(); ++s) {
        SavedSequence& saved = transaction.saved[static_cast<size_t>(s)];
        Sequence& q = sequence(s);
        if (saved.has_runs) {
            for_each_row(q, {0, q.n_keys}, [this](int32_t row) { drop_reference(row); });
            q.runs.swap(saved.runs);
        } else {
            for_each_row(q, {saved.n_keys, q.n_keys}, [this](int32_t row) { drop_reference(row); });
            cut_runs(q.runs, saved.n_keys);
        }
        q.n_keys = saved.n_keys;
        q.max_position = saved.max_position;
    }
    --depth_;
}

// Returns what the innermost transaction saves of the sequence, if it has not yet saved its runs.
RowTable::SavedSequence* RowTable::unsaved(SequenceId s) {
    if (depth_ == 0) return nullptr;
    SavedSequence& saved = transactions_[depth_ - 1].saved[static_cast<size_t>(s)];
    return saved.has_runs ? nullptr : &saved;
}

void RowTable::save(SequenceId s) {
    SavedSequence* const saved = unsaved(s);
    if (saved == nullptr) return;
    saved->runs = sequence(s).runs;
    cut_runs(saved->runs, saved->n_keys);
    saved->has_runs = true;
}

void RowTable::keep_dropped(Transaction& transaction, int32_t row) noexcept {
    next_dropped_[at(row)] = std::exchange(transaction.dropped, row);
}

int32_t RowTable::n_kept(int32_t pool) const {
    if (!in_transaction()) return 0;
    int32_t n = 0;
    const RowPool& rows = pools_[static_cast<size_t>(pool)];
    for (int32_t row = pool * rows_per_pool_; row < (pool + 1) * rows_per_pool_; ++row)
        n += !rows.is_free(row) && is_kept(row) ? 1 : 0;
    return n;
}

int32_t RowTable::reserve_kept_shifts() {
    if (!in_transaction() || !has_shifts()) return 0;
    std::vector<int32_t> needed(pools_.size());
    int32_t n = 0;
    for (int32_t row = 0; row < n_rows(); ++row) {
        if (!must_replace(row)) continue;
        ++needed[at(row / rows_per_pool_)];
        ++n;
    }
    for (size_t p = 0; p < pools_.size(); ++p)
        if (needed[p] > pools_[p].n_free())
            throw CacheFull(
                text("the transaction keeps ", needed[p], " cells with pending shifts, ",
                     "which must be copied before they are rotated; ", pools_[p].n_free(),
                     " cells are free", touched_.empty() ? "" : " after those of the batch"),
                needed[p], pools_[p].n_free());
    replaced_by_.resize(ref_counts_.size());
    new_runs_.resize(sequences_.size());
    for (SequenceId s = 0; s < n_sequences(); ++s) {
        const Sequence& q = sequence(s);
        size_t n_replaced = 0;
        for_each_row(q, {0, q.n_keys},
                     [&](int32_t row) { n_replaced += must_replace(row) ? 1 : 0; });
        new_runs_[static_cast<size_t>(s)].clear();
        if (n_replaced == 0) continue;
        save(s);
        new_runs_[static_cast<size_t>(s)].reserve(q.runs.size() + 2 * n_replaced);
    }
    return n;
}

void RowTable::replace_kept_shifts(std::vector<RowMove>& moves) noexcept {
    if (!in_transaction() || !has_shifts()) return;
    const int32_t n = n_rows();
    std::fill(replaced_by_.begin(), replaced_by_.end(), RowPool::kNone);
    int32_t after = RowPool::kNone;
    for (int32_t row = 0; row < n; ++row) {
        if (!must_replace(row)) continue;
        const SequenceId any_of_pool = row / rows_per_pool_;
        const int32_t copy = take(any_of_pool, after);
        after = copy;
        replaced_by_[at(row)] = copy;
        append_move(moves, row, copy);
    }
    for (SequenceId s = 0; s < n_sequences(); ++s) {
        Sequence& q = sequence(s);
        std::vector<Run>& runs = new_runs_[static_cast<size_t>(s)];
        bool changes = false;
        for_each_row(q, {0, q.n_keys}, [&](int32_t row) { changes |= must_replace(row); });
        if (!changes) continue;
        int32_t key = 0;
        for_each_row(q, {0, q.n_keys}, [&](int32_t row) {
            const int32_t copy = replaced_by_[at(row)];
            append_run(runs, {copy == RowPool::kNone ? row : copy, 1, key++, ordinals_[at(row)]});
        });
        q.runs.swap(runs);
    }
    for (int32_t row = 0; row < n; ++row) {
        const int32_t copy = replaced_by_[at(row)];
        if (copy == RowPool::kNone) continue;
        ref_counts_[at(copy)] = std::exchange(ref_counts_[at(row)], 0);
        copy_row(row, copy);
        --n_shifted_;
        keep_dropped(transactions_[depth_ - 1], row);
    }
    ++version_;
}

}  // namespace plait
