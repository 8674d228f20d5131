#include "batch/split.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

constexpr uint32_t kNoEntry = UINT32_MAX;

}  // namespace

std::span<const Microbatch> Split::cut(const PreparedBatch& batch, const SplitPolicy& policy) {
    PLAIT_CHECK(policy.max_tokens > 0);
    if (n_used_ > 0)
        clear_slots(microbatches_[n_used_ - 1]);  // if the previous call threw std::bad_alloc
    slot_of_.resize(batch.next.size(), -1);
    n_used_ = 0;
    order_entries(batch, policy.whole_sequences);

    uint32_t n_outputs = 0;
    size_t next_cut = 0;
    for (size_t begin = 0; begin < order_.size();) {
        size_t end = std::min<size_t>(begin + policy.max_tokens, order_.size());
        if (policy.whole_sequences) {
            // Takes at least one sequence, then as many more as fit.
            const size_t limit = end;
            end = cut_points_[next_cut++];
            while (next_cut < cut_points_.size() && cut_points_[next_cut] <= limit)
                end = cut_points_[next_cut++];
            std::sort(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                      order_.begin() + static_cast<std::ptrdiff_t>(end));
        } else if (policy.constant_coupling && batch.sequences.size() > batch.size()) {
            if (const auto found = find_coupling_end(batch, begin, end)) end = found->index;
        }
        Microbatch& microbatch = next_microbatch();
        microbatch.first_output = n_outputs;
        fill(microbatch, batch, std::span(order_).subspan(begin, end - begin));
        n_outputs += microbatch.n_outputs();
        begin = end;
    }
    return {microbatches_.data(), n_used_};
}

// Returns the first end of constant coupling in [begin, end) of order_; nullopt if there is none.
std::optional<Split::CouplingEnd> Split::find_coupling_end(const PreparedBatch& batch, size_t begin,
                                                           size_t end) {
    entry_of_.assign(batch.next.size(), kNoEntry);
    for (size_t i = begin; i < end; ++i) {
        const auto ids = batch.sequences_of(order_[i]);
        for (const SequenceId s : ids) {
            uint32_t& before = entry_of_[static_cast<size_t>(s)];
            if (before != kNoEntry && !std::ranges::equal(batch.sequences_of(before), ids))
                return CouplingEnd{i, s};
            before = order_[i];
        }
    }
    return std::nullopt;
}

void Split::check_coupling(const PreparedBatch& batch) {
    if (batch.sequences.size() == batch.size()) return;
    const auto found = find_coupling_end(batch, 0, batch.size());
    if (!found) return;
    throw BatchError(text("sequence ", found->sequence,
                          " shares some of its tokens with another sequence; ",
                          "where tokens attend to later ones, it must share all of them or none"));
}

// Fills order_ in batch order or, for whole sequences, sequence by sequence.
void Split::order_entries(const PreparedBatch& batch, bool whole_sequences) {
    order_.resize(batch.size());
    std::iota(order_.begin(), order_.end(), 0u);
    cut_points_.clear();
    if (!whole_sequences) return;
    check_coupling(batch);
    Microbatch& all = next_microbatch();
    fill(all, batch, order_);
    std::copy(all.entries.begin(), all.entries.end(), order_.begin());
    for (size_t s = 1; s < all.begin.size(); ++s)
        cut_points_.push_back(static_cast<uint32_t>(all.begin[s]));
    n_used_ = 0;
}

Microbatch& Split::next_microbatch() {
    if (n_used_ == microbatches_.size()) microbatches_.emplace_back();
    Microbatch& microbatch = microbatches_[n_used_++];
    microbatch.entries.clear();
    microbatch.sequences.clear();
    microbatch.begin.clear();
    microbatch.output_tokens.clear();
    microbatch.first_output = 0;
    return microbatch;
}

// Sorts `entries`, which are in batch order, by sequence with a stable counting sort.
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

    next_token_.assign(microbatch.begin.begin(), microbatch.begin.end() - 1);
    microbatch.entries.resize(entries.size());
    for (const uint32_t entry : entries) {
        const auto s = static_cast<size_t>(batch.first_sequence(entry));
        const int32_t token = next_token_[static_cast<size_t>(slot_of_[s])]++;
        microbatch.entries[static_cast<size_t>(token)] = entry;
        if (batch.source.wants[entry] != 0) microbatch.output_tokens.push_back(token);
    }
    clear_slots(microbatch);
}

void Split::clear_slots(const Microbatch& microbatch) {
    for (const SequenceId s : microbatch.sequences) slot_of_[static_cast<size_t>(s)] = -1;
}

}  // namespace plait
