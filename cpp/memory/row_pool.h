// Which rows of a consecutive range are free, and which of them to take next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

// Rows [first, first + n). Sequences that grow side by side start in chunks of their own, so that
// each keeps consecutive rows while there is room for that.
class RowPool {
public:
    static constexpr int32_t kChunk = 32;  // rows; also the bits of a word below
    static constexpr int32_t kNone = -1;

    RowPool(int32_t first, int32_t n);

    int32_t n_rows() const { return n_; }
    int32_t n_free() const { return n_free_; }
    bool is_free(int32_t row) const;  // false for rows of other pools

    // `wanted` if it is free; else the first row of a free chunk; else the lowest free row; else
    // kNone. Which row comes back depends on nothing but `wanted` and the rows that are free.
    int32_t take(int32_t wanted) noexcept;
    void give(int32_t row) noexcept;

private:
    int32_t pick() noexcept;

    int32_t first_;
    int32_t n_;
    int32_t n_free_;
    std::vector<uint32_t> used_;  // one bit a row; bits past the end are set
    // Where searches begin: every word before has a row taken, or has no row left.
    size_t first_empty_ = 0;
    size_t first_open_ = 0;
};

}  // namespace plait
