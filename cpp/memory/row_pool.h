// An allocator of rows. It tends to give each sequence consecutive rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

// Manages rows [first, first + n). Sequences that grow at the same time start in different chunks,
// so that each gets consecutive rows as long as there are free chunks.
class RowPool {
public:
    static constexpr int32_t kChunk = 32;  // rows; also the bits of a word below
    static constexpr int32_t kNone = -1;

    RowPool(int32_t first, int32_t n);

    int32_t n_rows() const { return n_; }
    int32_t n_free() const { return n_free_; }
    bool is_free(int32_t row) const;  // false for rows outside the range

    // Takes a row and returns it: `wanted` if it is free, otherwise the first row of the lowest
    // free chunk, otherwise the lowest free row. Returns kNone if no row is free. The result
    // depends only on `wanted` and on which rows are free.
    int32_t take(int32_t wanted) noexcept;
    void give(int32_t row) noexcept;

private:
    int32_t find_free_row() noexcept;

    int32_t first_;
    int32_t n_;
    int32_t n_free_;
    std::vector<uint32_t> used_;  // one bit per row; bits past the end are set
    // Lower bounds of the indices in used_ of the first word without a used row and of the first
    // word with a free row, where searches start.
    size_t first_empty_ = 0;
    size_t first_not_full_ = 0;
};

}  // namespace plait
