#include "memory/none.h"

#include <algorithm>

#include "base/text.h"
#include "memory/window.h"

namespace plait {

void NonePart::place(StepKind kind, const PreparedBatch& batch, std::span<const Piece> pieces) {
    if (encodes_only_ && kind == StepKind::decode) return;
    check_whole(batch, pieces);
    batch_ = &batch;
    pieces_ = pieces;
}

// Nothing of a sequence may be outside its piece, or in it as another sequence's token.
void NonePart::check_whole(const PreparedBatch& batch, std::span<const Piece> pieces) {
    const uint64_t before = n_placed_;
    for (const Piece& piece : pieces) {
        for (size_t s = 0; s < piece.sequences.size(); ++s) {
            const uint64_t now = ++n_placed_;
            const auto entries =
                std::span(piece.entries)
                    .subspan(static_cast<size_t>(piece.begin[s]),
                             static_cast<size_t>(piece.begin[s + 1] - piece.begin[s]));
            const auto company = batch.sequences_of(entries[0]);
            if (std::ssize(entries) > n_ctx_)
                throw BatchError(text("sequence ", company[0], " has ", entries.size(),
                                      " tokens, n_ctx is ", n_ctx_));
            for (const SequenceId id : company) {
                uint64_t& piece_of = piece_of_[static_cast<size_t>(id)];
                PLAIT_CHECK(piece_of <= before || batch.sequences.size() > batch.size());
                if (piece_of > before)
                    throw BatchError(text("sequence ", id,
                                          " shares some of its tokens; without "
                                          "a cache it must share all of them or none"));
                piece_of = now;
            }
            for (const uint32_t entry : entries)
                if (!std::ranges::equal(batch.sequences_of(entry), company))
                    throw BatchError(text("sequence ", company[0],
                                          " shares some of its tokens; "
                                          "without a cache it must share all of them or none"));
        }
    }
}

AttentionView NonePart::attention(const GroupInfo& group, size_t index) {
    PLAIT_CHECK(index < pieces_.size());
    const Piece& piece = pieces_[index];
    const size_t n = piece.entries.size();
    const auto position = [&](int32_t token) {
        return batch_->position(piece.entries[static_cast<size_t>(token)]);
    };
    runs_.clear();
    run_begin_.assign(1, 0);
    first_.assign(n, 0);
    last_.resize(n);
    key_positions_.clear();
    for (size_t s = 0; s < piece.sequences.size(); ++s) {
        const int32_t begin = piece.begin[s];
        const int32_t end = piece.begin[s + 1];
        runs_.push_back({.row = begin, .count = end - begin});
        run_begin_.push_back(static_cast<int32_t>(s) + 1);
        // Positions rise within a sequence, and both ends of what is seen with them.
        int32_t first = begin;
        int32_t last = begin;
        for (int32_t i = begin; i < end; ++i) {
            const Sight seen = sight(group.window, position(i));
            while (position(first) < seen.begin) ++first;
            while (last < end && (causal_ ? last <= i : position(last) <= seen.last)) ++last;
            first_[static_cast<size_t>(i)] = first - begin;
            last_[static_cast<size_t>(i)] = last - begin;
        }
    }
    if (group.needs_key_positions)
        for (size_t i = 0; i < n; ++i) key_positions_.push_back(position(static_cast<int32_t>(i)));
    return {
        .runs = runs_,
        .run_begin = run_begin_,
        .first = first_,
        .last = last_,
        .key_positions = key_positions_,
        .key_begin = group.needs_key_positions ? std::span<const int32_t>(piece.begin)
                                               : std::span<const int32_t>{},
    };
}

PartState NonePart::describe(std::span<const SequenceId> sequences, std::vector<StateRows>&) const {
    PartState state{.kind = GroupKind::within};
    state.sequences.resize(sequences.size());
    return state;
}

void NonePart::check_adopt(const PartState& state, std::span<const SequenceId> sequences, bool,
                           std::vector<StateRows>&) {
    const auto holds = [](const SequenceState& s) { return !s.items.empty(); };
    if (state.kind != GroupKind::within || state.n_items != 0 ||
        state.sequences.size() != sequences.size() || std::ranges::any_of(state.sequences, holds))
        throw StateError("the state is of layers that remember otherwise");
}

}  // namespace plait
