// The result of decode() or encode(). Cheap to copy; the arrays live as long as any copy.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/step/output_pool.h"

namespace plait {

class Outputs {
public:
    Outputs() = default;
    // Allocates `rows` rows of logits and of embeddings; a width of 0 omits either.
    Outputs(OutputPool& pool, int64_t rows, int64_t n_vocab, int64_t width);

    int64_t rows() const { return rows_; }
    bool has_logits() const { return n_vocab_ > 0; }
    bool has_embeddings() const { return width_ > 0; }
    std::span<float> logits() const;      // [rows, n_vocab]
    std::span<float> embeddings() const;  // [rows, width]
    std::span<int32_t> indices() const;   // [rows] batch entry of each row
    int64_t n_vocab() const { return n_vocab_; }
    int64_t width() const { return width_; }

private:
    OutputHandle handle_;
    int64_t rows_ = 0;
    int64_t n_vocab_ = 0;
    int64_t width_ = 0;
    uint64_t embeddings_offset_ = 0;
    uint64_t logits_offset_ = 0;
};

}  // namespace plait
