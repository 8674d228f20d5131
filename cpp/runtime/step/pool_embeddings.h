// Pooling: computes one embedding per sequence of a call from the hidden states of its tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "model/model.h"

namespace plait {

// Sums rows in order of position, so the result does not depend on how a sequence is split into
// microbatches.
class EmbeddingPool {
public:
    // Starts a call. `kind`: mean, cls (the first token of the call) or last.
    void start(Pooling kind, const PreparedBatch& batch, int64_t width);
    // Adds a microbatch. `hidden`: [n_outputs, width]; every token must be an output.
    void add(const PreparedBatch& batch, const Microbatch& microbatch,
             std::span<const float> hidden);

    size_t n_sequences() const { return sequences_.size(); }
    // Writes the pooled rows in ascending order of sequence id, and the batch entry of the last token of
    // each sequence.
    void finish(std::span<float> rows, std::span<int32_t> last_entries) const;

private:
    Pooling kind_ = Pooling::mean;
    size_t width_ = 0;
    std::vector<SequenceId> sequences_;  // ascending
    std::vector<int32_t> slot_of_;       // by sequence id; -1 if absent
    std::vector<double> sums_;           // [n_sequences, width]
    std::vector<int64_t> counts_;        // tokens added so far
    std::vector<int32_t> last_entries_;
};

}  // namespace plait
