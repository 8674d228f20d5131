// One embedding for each sequence of a call, from those of its tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "model/model.h"

namespace plait {

// Adds up over pieces in order of position, so how a sequence was cut cannot change a bit.
class EmbeddingPool {
public:
    // Starts a call. Kinds: mean, cls (the first token of the call), last.
    void start(Pooling kind, const PreparedBatch& batch, int64_t width);
    // Rows of `hidden` are the piece's output tokens, all its tokens in batch order.
    void add(const PreparedBatch& batch, const Microbatch& microbatch,
             std::span<const float> hidden);

    size_t n_sequences() const { return sequences_.size(); }
    // Rows in ascending sequence id; `last_entries`: the batch entry of each sequence's last token.
    void finish(std::span<float> rows, std::span<int32_t> last_entries) const;

private:
    Pooling kind_ = Pooling::mean;
    size_t width_ = 0;
    std::vector<SequenceId> sequences_;  // ascending
    std::vector<int32_t> slot_of_;       // by sequence id, or -1
    std::vector<double> sums_;           // [n_sequences, width]
    std::vector<int64_t> counts_;        // tokens added so far
    std::vector<int32_t> last_entries_;
};

}  // namespace plait
