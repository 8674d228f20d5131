#include "batch/split.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace plait {

std::span<const Piece> Split::cut(const PreparedBatch& batch, const SplitPolicy& policy) {
    PLAIT_CHECK(policy.max_tokens > 0);
    if (used_ > 0)
        forget_slots(pieces_[used_ - 1]);  // left over when the last cut ran out of memory
    slot_of_.resize(batch.next.size(), -1);
    used_ = 0;
    list_entries(batch, policy.whole_sequences);

    uint32_t n_outputs = 0;
    size_t next_end = 0;
    for (size_t begin = 0; begin < order_.size();) {
        size_t end = std::min<size_t>(begin + policy.max_tokens, order_.size());
        if (policy.whole_sequences) {
            // At least one sequence, then as many as fit.
            const size_t most = end;
            end = ends_[next_end++];
            while (next_end < ends_.size() && ends_[next_end] <= most) end = ends_[next_end++];
            std::sort(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                      order_.begin() + static_cast<std::ptrdiff_t>(end));
        } else if (policy.steady_company && batch.sequences.size() > batch.size()) {
            end = end_of_company(batch, begin, end);
        }
        Piece& piece = next_piece();
        piece.first_output = n_outputs;
        fill(piece, batch, std::span(order_).subspan(begin, end - begin));
        n_outputs += piece.n_outputs();
        begin = end;
    }
    return {pieces_.data(), used_};
}

// Where the first entry of [begin, end) is whose sequences are not those that one of them was with
// before.
size_t Split::end_of_company(const PreparedBatch& batch, size_t begin, size_t end) {
    constexpr uint32_t kNone = UINT32_MAX;
    entry_of_.assign(batch.next.size(), kNone);
    for (size_t i = begin; i < end; ++i) {
        const auto ids = batch.sequences_of(order_[i]);
        for (const SequenceId s : ids) {
            uint32_t& before = entry_of_[static_cast<size_t>(s)];
            if (before != kNone && !std::ranges::equal(batch.sequences_of(before), ids)) return i;
            before = order_[i];
        }
    }
    return end;
}

// Batch order; or, where sequences stay whole, one sequence after the other.
void Split::list_entries(const PreparedBatch& batch, bool whole_sequences) {
    order_.resize(batch.size());
    std::iota(order_.begin(), order_.end(), 0u);
    ends_.clear();
    if (!whole_sequences) return;
    Piece& all = next_piece();
    fill(all, batch, order_);
    std::copy(all.entries.begin(), all.entries.end(), order_.begin());
    for (size_t s = 1; s < all.begin.size(); ++s)
        ends_.push_back(static_cast<uint32_t>(all.begin[s]));
    used_ = 0;
}

Piece& Split::next_piece() {
    if (used_ == pieces_.size()) pieces_.emplace_back();
    Piece& piece = pieces_[used_++];
    piece.entries.clear();
    piece.sequences.clear();
    piece.begin.clear();
    piece.output_tokens.clear();
    piece.first_output = 0;
    return piece;
}

// A stable counting sort by sequence. `entries` are in batch order.
void Split::fill(Piece& piece, const PreparedBatch& batch, std::span<const uint32_t> entries) {
    piece.begin.push_back(0);
    for (const uint32_t entry : entries) {
        const SequenceId s = batch.first_sequence(entry);
        int32_t& slot = slot_of_[static_cast<size_t>(s)];
        if (slot < 0) {
            piece.begin.push_back(0);
            piece.sequences.push_back(s);
            slot = static_cast<int32_t>(piece.sequences.size()) - 1;
        }
        ++piece.begin[static_cast<size_t>(slot) + 1];
    }
    std::partial_sum(piece.begin.begin(), piece.begin.end(), piece.begin.begin());

    fill_.assign(piece.begin.begin(), piece.begin.end() - 1);
    piece.entries.resize(entries.size());
    for (const uint32_t entry : entries) {
        const auto s = static_cast<size_t>(batch.first_sequence(entry));
        const int32_t token = fill_[static_cast<size_t>(slot_of_[s])]++;
        piece.entries[static_cast<size_t>(token)] = entry;
        if (batch.source.wants[entry] != 0) piece.output_tokens.push_back(token);
    }
    forget_slots(piece);
}

void Split::forget_slots(const Piece& piece) {
    for (const SequenceId s : piece.sequences) slot_of_[static_cast<size_t>(s)] = -1;
}

}  // namespace plait
