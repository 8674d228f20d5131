// The input of a call: tokens or embeddings, with their sequences and positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plait {

using TokenId = int32_t;
using Position = int32_t;    // index of a token within its sequence, from 0
using SequenceId = int32_t;  // 0 .. n_seq_max - 1

inline constexpr Position kNextPosition = -1;  // the position after the sequence's last token

// The entries of a batch, in order, in arrays that the caller owns.
struct BatchView {
    std::span<const TokenId> tokens;          // [n], empty when `embeddings` are given
    std::span<const float> embeddings;        // [n, width], empty when `tokens` are given
    int64_t width = 0;                        // of embeddings
    std::span<const Position> positions;      // [n, axes]; empty: kNextPosition everywhere
    int axes = 1;                             // positions per entry: 1, or 4 (t, y, x, extra)
    std::span<const int32_t> sequence_begin;  // [n + 1] into sequences; empty: one id per entry
    std::span<const SequenceId> sequences;    // entry i: sequence_begin[i] .. sequence_begin[i + 1]
    std::span<const uint8_t> wants;           // [n]; non-zero: the entry wants an output row
    bool both_directions = false;  // entries also see later entries of their sequence in the batch
    size_t size = 0;               // n

    std::span<const SequenceId> sequences_of(size_t entry) const {
        if (sequence_begin.empty()) return sequences.subspan(entry, 1);
        const auto begin = static_cast<size_t>(sequence_begin[entry]);
        return sequences.subspan(begin, static_cast<size_t>(sequence_begin[entry + 1]) - begin);
    }
};

// A batch that owns its arrays. It holds either tokens or embeddings.
class Batch {
public:
    // `position`: empty for kNextPosition, one value, or four (t, y, x, extra). All functions throw
    // BatchError without changing the batch.
    void add(TokenId token, std::span<const Position> position,
             std::span<const SequenceId> sequences, bool want);
    // `both_directions`: as in BatchView; the same for all entries.
    void add_embedding(std::span<const float> row, std::span<const Position> position,
                       std::span<const SequenceId> sequences, bool want,
                       bool both_directions = false);
    void clear();
    void reserve(size_t entries);

    size_t size() const { return wants_.size(); }
    BatchView view() const;

private:
    void add_entry(std::span<const Position> position, std::span<const SequenceId> sequences,
                   bool want);

    std::vector<TokenId> tokens_;
    std::vector<float> embeddings_;
    int64_t width_ = 0;
    std::vector<Position> positions_;  // [n, axes_]
    int axes_ = 1;
    std::vector<int32_t> sequence_begin_{0};
    std::vector<SequenceId> sequences_;
    std::vector<uint8_t> wants_;
    bool both_directions_ = false;
};

}  // namespace plait
