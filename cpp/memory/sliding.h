// Keys and values of layers with a window, whose rows are given back once no token to come can see
// them. Beltagy et al. 2020, arXiv:2004.05150; as used by Mistral and Gemma.
//
// Rows are retired when a call commits, so that a call that fails finds all of them. While it runs
// its first token needs the keys before it and its own tokens need rows too, hence the capacity:
// max_sequences * (window - 1) + n_batch rows; each stream alone window - 1 + n_batch.
//
// Every sequence retires its own keys, and a row is free when nobody holds it. So a copy keeps the
// window at its end alive, however far the sequence that it was made of goes on.
#pragma once

#include "memory/attention.h"

namespace plait {

// Whether rows are freed when a window moves past them.
bool frees_rows(const Window& window, const MemoryOptions& options);
// Rows of a group that frees rows: for all sequences together, or per stream.
int64_t sliding_rows(const Window& window, const MemoryOptions& options);

class SlidingPart final : public AttentionPart {
public:
    SlidingPart(const MemoryLayout& layout, std::vector<uint8_t> groups,
                const MemoryOptions& options);

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;

    // Refused where the sequence would need keys again that it has given back.
    bool can_remove(SequenceId sequence, PositionRange range) override;
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    size_t check_reposition(SequenceId sequence, const Reposition& how) override;
    void reposition(SequenceId sequence, const Reposition& how,
                    std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override;
    bool can_end_at(SequenceId sequence, Position next) const override;

    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

protected:
    PositionRange past(SequenceId s) const override { return retired_[static_cast<size_t>(s)]; }

private:
    // What a copy leaves of both sequences in the one that takes it.
    struct Copy {
        std::optional<Position> last;  // where it ends; nothing: it is empty
        PositionRange retired;
        PositionRange range;    // of what is copied: the rest is out of sight
        int32_t n_dropped = 0;  // first keys of `to` that go out of sight
        KeyRange keys;          // of `from`
        KeyRange replaced;      // of `to`, once the first keys are gone
    };
    Copy plan_copy(SequenceId from, SequenceId to, PositionRange range) const;

    Position position_of(SequenceId s, int32_t key) const {
        return table_.position(table_.row_of(s, key));
    }
    // Whether a sequence whose last key that it holds is at `last` has all that it will see.
    bool sees_all(std::optional<Position> last, PositionRange retired) const;
    PositionRange& retired(SequenceId s) { return retired_[static_cast<size_t>(s)]; }
    void retire(SequenceId s) noexcept;

    Window window_;
    int64_t n_ctx_;
    // By sequence: from the first to one past the last position whose key was given back; both 0
    // when there is none. The last key of a sequence always stays.
    std::vector<PositionRange> retired_;
    const PreparedBatch* batch_ = nullptr;  // of the step under way
};

}  // namespace plait
