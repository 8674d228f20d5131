// The part for attention layers with a window. It frees the rows that later tokens cannot see.
// Beltagy et al. 2020, arXiv:2004.05150; as used by Mistral and Gemma.
//
// Rows are freed when a call commits, so that a call that fails can be rolled back. During a call,
// its first token needs the window - 1 keys before it, and each of its tokens needs a row. Hence
// the capacity is n_seq_max * (window - 1) + n_batch rows, or window - 1 + n_batch rows per stream.
//
// Each sequence releases its own keys, and a row is free once no sequence holds it. A copy of a
// sequence therefore keeps the window at its end, even if the original continues beyond it.
#pragma once

#include "memory/attention.h"
#include "memory/saved.h"

namespace plait {

// Returns true if rows are freed when the window moves past them.
bool frees_rows(const Window& window, const MemoryOptions& options);
// Returns the number of rows of a group that frees rows, per stream.
int64_t sliding_rows(const Window& window, const MemoryOptions& options);

class SlidingPart final : public AttentionPart {
public:
    SlidingPart(const MemoryLayout& layout, std::vector<uint8_t> groups,
                const MemoryOptions& options);

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;

    // Returns false if later tokens of the sequence would have to see keys that have been freed.
    bool can_remove(SequenceId sequence, PositionRange range) override;
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    size_t check_reposition(SequenceId sequence, const Reposition& how) override;
    void reposition(SequenceId sequence, const Reposition& how,
                    std::vector<RowMove>& moves) noexcept override;
    size_t check_discard(SequenceId sequence, PositionRange range) override;
    void discard(SequenceId sequence, PositionRange range,
                 std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override;
    bool can_end_at(SequenceId sequence, Position next) const override;

    void begin_transaction() override;
    void commit_transaction() noexcept override;
    void roll_back_transaction() noexcept override;

    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

protected:
    PositionRange freed_positions(SequenceId s) const override {
        return freed_[static_cast<size_t>(s)];
    }

private:
    // The effect of a copy on `to`. Keys that the result cannot see are dropped or not copied.
    struct Copy {
        std::optional<Position> last;  // last position of the result; nullopt: it has no keys
        PositionRange freed;           // positions of the result whose keys were freed before
        PositionRange range;           // positions that are copied
        int32_t n_dropped = 0;         // keys dropped from the beginning of `to`
        KeyRange keys;                 // copied keys, as indices in `from`
        KeyRange replaced;             // keys that they replace, as indices in `to` after dropping
    };
    Copy plan_copy(SequenceId from, SequenceId to, PositionRange range) const;

    Position position_of(SequenceId s, int32_t key) const {
        return table_.position(table_.row_of(s, key));
    }
    // Returns true if a sequence whose last key is at `last` will not see any of the `freed` keys.
    bool keeps_visible_keys(std::optional<Position> last, PositionRange freed) const;
    PositionRange& freed(SequenceId s) { return freed_[static_cast<size_t>(s)]; }
    void free_unseen_keys(SequenceId s) noexcept;

    Window window_;
    // True if a part that stores all positions checks each change of positions, too. This part knows
    // only a range of those that it has freed, in which some may have been removed.
    bool beside_full_;
    int64_t n_ctx_;
    // [n_sequences] the range of positions whose keys were freed; {0, 0} if none. The last key of a
    // sequence is never freed.
    std::vector<PositionRange> freed_;
    Saved<std::vector<PositionRange>> saved_freed_;
    const PreparedBatch* batch_ = nullptr;  // of the current step
};

}  // namespace plait
