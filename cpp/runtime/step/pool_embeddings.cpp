#include "runtime/step/pool_embeddings.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

void EmbeddingPool::start(Pooling kind, const PreparedBatch& batch, int64_t width) {
    kind_ = kind;
    width_ = static_cast<size_t>(width);
    sequences_.assign(batch.sequences.begin(), batch.sequences.end());
    std::ranges::sort(sequences_);
    sequences_.erase(std::ranges::unique(sequences_).begin(), sequences_.end());
    slot_of_.assign(static_cast<size_t>(sequences_.back()) + 1, -1);
    for (size_t s = 0; s < sequences_.size(); ++s)
        slot_of_[static_cast<size_t>(sequences_[s])] = static_cast<int32_t>(s);
    sums_.assign(sequences_.size() * width_, 0.0);
    counts_.assign(sequences_.size(), 0);
    last_entries_.assign(sequences_.size(), 0);
}

void EmbeddingPool::add(const PreparedBatch& batch, const Microbatch& microbatch,
                        std::span<const float> hidden) {
    PLAIT_CHECK(hidden.size() == microbatch.output_tokens.size() * width_);
    for (size_t row = 0; row < microbatch.output_tokens.size(); ++row) {
        const uint32_t entry =
            microbatch.entries[static_cast<size_t>(microbatch.output_tokens[row])];
        const float* values = hidden.data() + row * width_;
        for (const SequenceId sequence : batch.sequences_of(entry)) {
            const auto s = static_cast<size_t>(slot_of_[static_cast<size_t>(sequence)]);
            double* sum = sums_.data() + s * width_;
            const bool first = counts_[s]++ == 0;
            last_entries_[s] = static_cast<int32_t>(entry);
            if (kind_ == Pooling::mean)
                for (size_t i = 0; i < width_; ++i) sum[i] += static_cast<double>(values[i]);
            else if (kind_ == Pooling::last || first)
                std::copy_n(values, width_, sum);
        }
    }
}

void EmbeddingPool::finish(std::span<float> rows, std::span<int32_t> last_entries) const {
    PLAIT_CHECK(rows.size() == sums_.size() && last_entries.size() == sequences_.size());
    for (size_t s = 0; s < sequences_.size(); ++s) {
        const double divisor = kind_ == Pooling::mean ? static_cast<double>(counts_[s]) : 1.0;
        for (size_t i = 0; i < width_; ++i)
            rows[s * width_ + i] = static_cast<float>(sums_[s * width_ + i] / divisor);
        last_entries[s] = last_entries_[s];
    }
}

}  // namespace plait
