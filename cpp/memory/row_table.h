// Which rows hold which tokens of which sequences. The shared core of every attention variant.
//
// A sequence is a list of runs: consecutive rows that hold consecutive tokens. The list is what
// attention reads, so a step makes nothing anew, and an edit costs the runs it touches. A row knows
// its token's position and by how many sequences it is held; it is free when none holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batch/sequence_index.h"
#include "memory/part.h"
#include "memory/row_pool.h"

namespace plait {

// Keys of one sequence by index, oldest first: [begin, end).
struct KeyRange {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t size() const { return end - begin; }
};

// Keys are ordered by position, equal positions by age. Sequences are not checked.
class RowTable {
public:
    // One pool of rows for all sequences, or one for each: sequence s takes rows of pool s alone.
    RowTable(int32_t rows_per_pool, bool pool_per_sequence, int32_t n_sequences, int axes);

    int32_t n_sequences() const { return static_cast<int32_t>(sequences_.size()); }
    int32_t n_pools() const { return static_cast<int32_t>(pools_.size()); }
    int32_t pool_of(SequenceId s) const { return pools_.size() == 1 ? 0 : s; }
    int32_t n_rows() const { return static_cast<int32_t>(holders_.size()); }
    int32_t rows_per_pool() const { return rows_per_pool_; }
    int axes() const { return static_cast<int>(axes_); }
    int32_t n_free() const;  // of all pools
    int32_t n_free(SequenceId s) const { return pool(s).n_free(); }

    std::span<const Run> runs(SequenceId s) const { return sequence(s).runs; }
    int32_t n_keys(SequenceId s) const { return sequence(s).n_keys; }
    int32_t row_of(SequenceId s, int32_t key) const;
    KeyRange keys(SequenceId s, PositionRange range) const;
    int32_t first_key_from(SequenceId s,
                           Position position) const;  // n_keys when there is none
    std::optional<PositionBounds> bounds(SequenceId s) const;
    bool same_content(std::span<const SequenceId> ids) const;

    Position position(int32_t row) const { return positions_[at(row) * axes_]; }
    std::span<const Position> positions(int32_t row) const {
        return std::span(positions_).subspan(at(row) * axes_, axes_);
    }
    int32_t ordinal(int32_t row) const { return ordinals_[at(row)]; }
    int32_t shift(int32_t row) const { return shifts_[at(row)]; }

    // A step. Appends one token to all of `ids`, which hold the same; returns its row. Rows must be
    // free. What was appended since the last commit() goes with rollback().
    int32_t append(std::span<const SequenceId> ids, std::span<const Position> position);
    void commit() noexcept;
    void rollback() noexcept;

    // Edits, between steps. None can fail: rows must be free in sufficient number, and the edit's
    // reserve_ must have been called; std::bad_alloc comes from there. Moves are appended, with
    // group 0, to a list that has room for them.
    void reserve_release(SequenceId s);
    void release(SequenceId s, KeyRange keys) noexcept;
    void release_front(SequenceId s,
                       int32_t n_keys) noexcept;  // needs no reserve_
    void release_all(SequenceId s) noexcept { truncate(s, 0); }
    // `replaced` of `to` give way to `keys` of `from`: to the same rows, or to rows of its own
    // pool.
    void reserve_share(SequenceId from, SequenceId to);
    void share(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced) noexcept;
    void reserve_duplicate(int32_t n_keys, SequenceId to);
    void duplicate(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                   std::vector<RowMove>& moves) noexcept;
    int32_t n_shared(SequenceId s,
                     KeyRange keys) const;  // rows that others hold too
    void reserve_make_own(SequenceId s, int32_t n_shared);
    void make_own(SequenceId s, KeyRange keys, std::vector<RowMove>& moves) noexcept;
    // position -> position / divisor + delta; the difference adds to the rows' pending rotation. No
    // row of `keys` may be shared, and the order of keys must stay.
    void reposition(SequenceId s, KeyRange keys, int32_t divisor, int32_t delta) noexcept;
    void exchange(SequenceId a,
                  SequenceId b) noexcept;  // what they hold; of one pool

    // Tokens put down one by one, as a saved state lists them: a row for a new one, or a row that
    // another sequence of the pool holds.
    void reserve_keys(SequenceId s, int32_t n_keys);
    int32_t put(SequenceId s, std::span<const Position> position, int32_t ordinal) noexcept;
    void put_shared(SequenceId s, int32_t row) noexcept;

    // Moves what rows hold to free rows, or to rows that an earlier move left, in order.
    void move_rows(std::span<const RowMove> moves);  // std::bad_alloc changes nothing
    int64_t n_runs() const;                          // of all sequences
    // Runs of a sequence that there is room for from the beginning, so that steps need none: rows
    // are moved together long before a sequence has as many.
    size_t runs_ahead() const;
    uint64_t version() const { return version_; }  // another one whenever who holds what changes

    bool has_shifts() const { return n_shifted_ > 0; }
    bool is_shifted(int32_t row) const { return shifted_[at(row)] != 0; }
    int32_t n_shifted() const { return n_shifted_; }  // rows
    void clear_shifts() noexcept;

private:
    struct Sequence {
        std::vector<Run> runs;  // as few as describe the rows
        int32_t n_keys = 0;
        int32_t n_committed = -1;   // keys before the step under way; -1: untouched by it
        Position max_position = 0;  // on any axis
    };

    static size_t at(int32_t row) { return static_cast<size_t>(row); }
    Sequence& sequence(SequenceId s) { return sequences_[static_cast<size_t>(s)]; }
    const Sequence& sequence(SequenceId s) const { return sequences_[static_cast<size_t>(s)]; }
    RowPool& pool(SequenceId s) { return pools_[static_cast<size_t>(pool_of(s))]; }
    const RowPool& pool(SequenceId s) const { return pools_[static_cast<size_t>(pool_of(s))]; }

    template <typename Visit>
    void for_each_row(const Sequence& sequence, KeyRange keys, Visit visit) const;
    template <typename Holds>
    int32_t partition_point(SequenceId s, Holds holds) const;

    void add_to_scratch(const Run& run);
    void add_to_scratch(const Sequence& from, KeyRange keys);
    int32_t copy_to_scratch(int32_t row, SequenceId to, int32_t after, std::vector<RowMove>& moves);
    void adopt_scratch(Sequence& s) noexcept;
    void add_key(Sequence& s, int32_t row) noexcept;
    void move_row(int32_t from, int32_t to) noexcept;
    void set_shift(int32_t row, int32_t shift, bool shifted) noexcept;
    void hold(int32_t row) noexcept {
        ++holders_[at(row)];
        ++version_;
    }
    void drop(int32_t row) noexcept;
    void truncate(SequenceId s, int32_t n_keys) noexcept;
    void refresh(Sequence& s) noexcept;

    size_t axes_;
    int32_t rows_per_pool_;
    std::vector<RowPool> pools_;
    std::vector<Position> positions_;  // [n_rows, axes]
    std::vector<int32_t> ordinals_;    // [n_rows] of the token in its sequence
    std::vector<int32_t> shifts_;      // [n_rows] rotation not yet applied
    std::vector<uint8_t> shifted_;     // [n_rows] whether there is one, if only by 0
    std::vector<int32_t> holders_;     // [n_rows] sequences that hold the row
    std::vector<Sequence> sequences_;
    std::vector<SequenceId> touched_;  // by the step under way
    std::vector<Run> scratch_;         // the runs that an edit is making
    int32_t n_scratch_keys_ = 0;
    int32_t n_shifted_ = 0;
    uint64_t version_ = 0;
};

}  // namespace plait
