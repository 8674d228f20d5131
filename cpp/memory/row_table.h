// The table of rows that attention and cross parts share: which rows hold which tokens of which
// sequences.
//
// A sequence is a list of runs, which are consecutive rows that hold consecutive tokens. Attention
// reads these lists directly. A row has the position and the ordinal of its token, and a reference
// count: the number of sequences that hold it. A row whose count is 0 is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batch/sequence_index.h"
#include "memory/part.h"
#include "memory/row_pool.h"
#include "memory/runs.h"

namespace plait {

// Indices of keys of one sequence, oldest first: [begin, end).
struct KeyRange {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t size() const { return end - begin; }
};

// The keys of a sequence are sorted by position, and equal positions by age. Sequence ids are not
// checked.
class RowTable {
public:
    // If `pool_per_sequence`, sequence s takes rows of pool s only; otherwise there is one pool.
    RowTable(int32_t rows_per_pool, bool pool_per_sequence, int32_t n_sequences, int axes);

    int32_t n_sequences() const { return static_cast<int32_t>(sequences_.size()); }
    int32_t n_pools() const { return static_cast<int32_t>(pools_.size()); }
    int32_t pool_of(SequenceId s) const { return pools_.size() == 1 ? 0 : s; }
    int32_t n_rows() const { return static_cast<int32_t>(ref_counts_.size()); }
    int32_t rows_per_pool() const { return rows_per_pool_; }
    int axes() const { return static_cast<int>(axes_); }
    int32_t n_free() const;  // of all pools
    int32_t n_free(SequenceId s) const { return pool(s).n_free(); }

    std::span<const Run> runs(SequenceId s) const { return sequence(s).runs; }
    int32_t n_keys(SequenceId s) const { return sequence(s).n_keys; }
    int32_t row_of(SequenceId s, int32_t key) const;
    KeyRange keys(SequenceId s, PositionRange range) const;
    // Returns the index of the first key at or after `position`; n_keys if there is none.
    int32_t first_key_from(SequenceId s, Position position) const;
    std::optional<PositionBounds> bounds(SequenceId s) const;
    bool same_content(std::span<const SequenceId> ids) const;

    Position position(int32_t row) const { return positions_[at(row) * axes_]; }
    std::span<const Position> positions(int32_t row) const {
        return std::span(positions_).subspan(at(row) * axes_, axes_);
    }
    int32_t ordinal(int32_t row) const { return ordinals_[at(row)]; }
    int32_t shift(int32_t row) const { return shifts_[at(row)]; }

    // A step. append() adds one token to all of `ids`, which must have the same content, and
    // returns its row; a row must be free. rollback() removes the tokens appended since the last
    // commit().
    int32_t append(std::span<const SequenceId> ids, std::span<const Position> position);
    void commit() noexcept;
    void rollback() noexcept;

    // Edits, between steps. An edit cannot fail, given enough free rows and a preceding call of its
    // reserve function, which may throw std::bad_alloc. Edits append moves, with group 0, to a list
    // whose capacity must suffice.
    void reserve_release(SequenceId s);
    void release(SequenceId s, KeyRange keys) noexcept;
    void release_front(SequenceId s, int32_t n_keys) noexcept;  // no reserve function
    void release_all(SequenceId s) noexcept;
    // Both replace `replaced` of `to` by `keys` of `from`. share() adds references to the same
    // rows; duplicate() takes rows in the pool of `to` and appends the moves.
    void reserve_share(SequenceId from, SequenceId to);
    void share(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced) noexcept;
    void reserve_duplicate(int32_t n_keys, SequenceId to);
    void duplicate(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                   std::vector<RowMove>& moves) noexcept;
    // Returns the number of rows of `keys` that other sequences hold too. A list of keys holds
    // indices in ascending order.
    int32_t n_shared(SequenceId s, KeyRange keys) const;
    int32_t n_shared(SequenceId s, std::span<const int32_t> keys) const;
    // Returns the number of rows of `keys` that become free if they are released.
    int32_t n_freed(SequenceId s, KeyRange keys) const { return keys.size() - n_shared(s, keys); }
    // Replaces shared rows of `keys` by copies that only this sequence holds. What
    // reserve_unshare() reserves also suffices if a release() of other keys comes before.
    void reserve_unshare(SequenceId s, int32_t n_shared);
    void unshare(SequenceId s, KeyRange keys, std::vector<RowMove>& moves) noexcept;
    void unshare(SequenceId s, std::span<const int32_t> keys, std::vector<RowMove>& moves) noexcept;
    // Changes each position p of `keys` to p / divisor + delta and adds the difference to the row's
    // pending shift. No row of `keys` may be shared, and the order of keys must not change.
    void reposition(SequenceId s, KeyRange keys, int32_t divisor, int32_t delta) noexcept;
    // Swaps the contents of two sequences of the same pool.
    void swap(SequenceId a, SequenceId b) noexcept;

    // Restoring a state, token by token. restore_key() takes a row and returns it;
    // restore_shared_key() adds a reference to a row of another sequence of the same pool.
    void reserve_keys(SequenceId s, int32_t n_keys);
    int32_t restore_key(SequenceId s, std::span<const Position> position, int32_t ordinal) noexcept;
    void restore_shared_key(SequenceId s, int32_t row) noexcept;

    // Transactions; they nest. begin_transaction() may throw std::bad_alloc. Rows that were in use
    // when the innermost transaction began are kept until it ends, even if no sequence holds them:
    // they count as used and as shared, so edits copy them instead of changing them. Both ends of
    // a transaction take time in proportion to the changes.
    void begin_transaction();
    void commit_transaction() noexcept;
    void roll_back_transaction() noexcept;
    bool in_transaction() const { return depth_ > 0; }
    // Prepares release_front() and swap() of this sequence; the other edits prepare themselves.
    void save(SequenceId s);
    // Number of rows of a pool that a transaction keeps, held by sequences or not.
    int32_t n_kept(int32_t pool) const;
    // Kept rows with a pending shift that sequences hold. replace_kept_shifts() gives these
    // sequences copies of them, so that the shifts of the copies can be applied.
    // reserve_kept_shifts() returns their number; it throws CacheFull if there is no room. It may
    // be called during a step, whose rows then count as used.
    int32_t reserve_kept_shifts();
    void replace_kept_shifts(std::vector<RowMove>& moves) noexcept;

    // Moves rows to free rows, or to rows that an earlier move has freed, in order. If it throws
    // std::bad_alloc, nothing has changed.
    void move_rows(std::span<const RowMove> moves);
    int64_t n_runs() const;  // of all sequences
    // Number of runs per sequence for which memory is allocated in advance, so that steps rarely
    // allocate: defragmentation usually happens before a sequence has more runs.
    size_t reserved_runs() const;
    // A number that changes whenever a reference to a row is added or dropped.
    uint64_t version() const { return version_; }

    bool has_shifts() const { return n_shifted_ > 0; }
    // True if a rotation by a number other than 0 is pending for the row.
    bool is_shifted(int32_t row) const { return shifted_[at(row)] != 0; }
    // True if take_shifts() is to apply it: a sequence holds the row.
    bool applies_shift(int32_t row) const { return is_shifted(row) && ref_counts_[at(row)] > 0; }
    int32_t n_shifted() const { return n_shifted_; }  // number of these rows
    void clear_shifts() noexcept;

private:
    struct Sequence {
        std::vector<Run> runs;  // adjacent runs are merged
        int32_t n_keys = 0;
        int32_t n_committed = -1;   // keys before the current step; -1: not part of it
        Position max_position = 0;  // on any axis
    };

    static size_t at(int32_t row) { return static_cast<size_t>(row); }
    Sequence& sequence(SequenceId s) { return sequences_[static_cast<size_t>(s)]; }
    const Sequence& sequence(SequenceId s) const { return sequences_[static_cast<size_t>(s)]; }
    RowPool& pool(SequenceId s) { return pools_[static_cast<size_t>(pool_of(s))]; }
    const RowPool& pool(SequenceId s) const { return pools_[static_cast<size_t>(pool_of(s))]; }

    template <typename Visit>
    static void for_each_row(const Sequence& sequence, KeyRange keys, Visit visit) {
        plait::for_each_row(std::span<const Run>(sequence.runs), keys.begin, keys.end, visit);
    }
    template <typename Predicate>
    int32_t partition_point(SequenceId s, Predicate predicate) const;

    // What a transaction restores of a sequence.
    struct SavedSequence {
        int32_t n_keys = 0;
        Position max_position = 0;
        bool has_runs = false;  // if not, keys were only added
        std::vector<Run> runs;
    };
    struct Transaction {
        uint64_t serial = 0;               // of the transaction; older rows have a smaller `born_`
        int32_t dropped = RowPool::kNone;  // list of kept rows that no sequence holds
        std::vector<SavedSequence> saved;  // [n_sequences]
    };

    // True if the row was in use when the innermost transaction began.
    bool is_kept(int32_t row) const {
        return depth_ > 0 && born_[at(row)] < transactions_[depth_ - 1].serial;
    }
    bool must_replace(int32_t row) const {
        return is_kept(row) && is_shifted(row) && ref_counts_[at(row)] > 0;
    }
    bool is_shared(int32_t row) const { return ref_counts_[at(row)] > 1 || is_kept(row); }
    SavedSequence* unsaved(SequenceId s);
    int32_t take(SequenceId s, int32_t after) noexcept;  // in the pool of `s`
    void give(int32_t row) noexcept;
    void keep_dropped(Transaction& transaction, int32_t row) noexcept;
    void copy_row(int32_t from, int32_t to) noexcept;

    template <typename Wanted>
    void unshare_if(SequenceId s, KeyRange range, std::vector<RowMove>& moves,
                    Wanted wanted) noexcept;

    void add_to_scratch(const Run& run);
    void add_to_scratch(const Sequence& from, KeyRange keys);
    int32_t copy_row_to_scratch(int32_t row, SequenceId to, int32_t after,
                                std::vector<RowMove>& moves);
    void set_runs_from_scratch(Sequence& s) noexcept;
    void add_key(Sequence& s, int32_t row) noexcept;
    void move_row(int32_t from, int32_t to) noexcept;
    void set_shift(int32_t row, int32_t shift, bool shifted) noexcept;
    void add_reference(int32_t row) noexcept {
        if (ref_counts_[at(row)]++ == 0 && is_shifted(row)) ++n_shifted_;  // a dropped row
        ++version_;
    }
    void drop_reference(int32_t row) noexcept;
    void truncate(SequenceId s, int32_t n_keys) noexcept;
    void update_max_position(Sequence& s) noexcept;

    size_t axes_;
    int32_t rows_per_pool_;
    std::vector<RowPool> pools_;
    std::vector<Position> positions_;  // [n_rows, axes]
    std::vector<int32_t> ordinals_;    // [n_rows] of the token in its sequence
    std::vector<int32_t> shifts_;      // [n_rows] pending shift
    std::vector<uint8_t> shifted_;     // [n_rows] 1 if the pending shift is not 0
    std::vector<int32_t> ref_counts_;  // [n_rows] number of sequences that hold the row
    std::vector<Sequence> sequences_;
    std::vector<SequenceId> touched_;  // sequences of the current step
    // Open transactions are the first `depth_`; the others keep their memory for later ones.
    std::vector<Transaction> transactions_;
    size_t depth_ = 0;
    uint64_t serial_ = 0;                // of the last transaction
    std::vector<uint64_t> born_;         // [n_rows] serial_ when the row was taken; empty: all 0
    std::vector<int32_t> next_dropped_;  // [n_rows] links of Transaction::dropped
    std::vector<int32_t> replaced_by_;   // [n_rows] scratch of replace_kept_shifts()
    std::vector<std::vector<Run>> new_runs_;  // [n_sequences] scratch of replace_kept_shifts()
    std::vector<Run> scratch_;                // new runs of the sequence being edited
    int32_t n_scratch_keys_ = 0;              // keys of scratch_
    int32_t n_shifted_ = 0;                   // shifted rows that sequences hold
    uint64_t version_ = 0;
};

}  // namespace plait
