#include "batch/split.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace plait {

std::span<const Microbatch> Split::cut(const PreparedBatch& batch, const SplitPolicy& policy) {
    PLAIT_CHECK(policy.max_tokens > 0);
    if (used_ > 0)
        forget_slots(microbatches_[used_ - 1]);  // left over when the last cut ran out of memory
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
        } else if (policy.constant_coupling && batch.sequences.size() > batch.size()) {
            end = end_of_company(batch, begin, end);
        }
        Microbatch& microbatch = next_microbatch();
        microbatch.first_output = n_outputs;
        fill(microbatch, batch, std::span(order_).subspan(begin, end - begin));
        n_outputs += microbatch.n_outputs();
        begin = end;
    }
    return {microbatches_.data(), used_};
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
    Microbatch& all = next_microbatch();
    fill(all, batch, order_);
    std::copy(all.entries.begin(), all.entries.end(), order_.begin());
    for (size_t s = 1; s < all.begin.size(); ++s)
        ends_.push_back(static_cast<uint32_t>(all.begin[s]));
    used_ = 0;
}

Microbatch& Split::next_microbatch() {
    if (used_ == microbatches_.size()) microbatches_.emplace_back();
    Microbatch& microbatch = microbatches_[used_++];
    microbatch.entries.clear();
    microbatch.sequences.clear();
    microbatch.begin.clear();
    microbatch.output_tokens.clear();
    microbatch.first_output = 0;
    return microbatch;
}

// A stable counting sort by sequence. `entries` are in batch order.
void Split::fill(Microbatch& microbatch, const PreparedBatch& batch,
                 std::span<const uint32_t> entries) {
    microbatch.begin.push_back(0);
    for (const uint32_t entry : entries) {
        const SequenceId s = batch.first_sequence(entry);
        int32_t& slot = slot_of_[static_cast<size_t>(s)];
        if (slot < 0) {
            microbatch.begin.push_back(0);
            microbatch.sequences.push_back(s);
            slot = static_cast<int32_t>(microbatch.sequences.size()) - 1;
        }
        ++microbatch.begin[static_cast<size_t>(slot) + 1];
    }
    std::partial_sum(microbatch.begin.begin(), microbatch.begin.end(), microbatch.begin.begin());

    fill_.assign(microbatch.begin.begin(), microbatch.begin.end() - 1);
    microbatch.entries.resize(entries.size());
    for (const uint32_t entry : entries) {
        const auto s = static_cast<size_t>(batch.first_sequence(entry));
        const int32_t token = fill_[static_cast<size_t>(slot_of_[s])]++;
        microbatch.entries[static_cast<size_t>(token)] = entry;
        if (batch.source.wants[entry] != 0) microbatch.output_tokens.push_back(token);
    }
    forget_slots(microbatch);
}

void Split::forget_slots(const Microbatch& microbatch) {
    for (const SequenceId s : microbatch.sequences) slot_of_[static_cast<size_t>(s)] = -1;
}

}  // namespace plait
