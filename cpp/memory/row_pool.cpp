#include "memory/row_pool.h"

#include <algorithm>
#include <bit>

namespace plait {
namespace {

constexpr uint32_t kFull = ~uint32_t{0};

}  // namespace

RowPool::RowPool(int32_t first, int32_t n)
    : first_(first), n_(n), n_free_(n), used_((static_cast<size_t>(n) + kChunk - 1) / kChunk, 0u) {
    if (n % kChunk != 0) used_.back() = kFull << (n % kChunk);
}

bool RowPool::is_free(int32_t row) const {
    if (row < first_ || row - first_ >= n_) return false;
    const auto at = static_cast<uint32_t>(row - first_);
    return (used_[at / kChunk] >> (at % kChunk) & 1u) == 0;
}

int32_t RowPool::take(int32_t wanted) noexcept {
    if (n_free_ == 0) return kNone;
    const int32_t row = is_free(wanted) ? wanted : find_free_row();
    const auto at = static_cast<uint32_t>(row - first_);
    used_[at / kChunk] |= 1u << (at % kChunk);
    --n_free_;
    return row;
}

int32_t RowPool::find_free_row() noexcept {
    while (first_empty_ < used_.size() && used_[first_empty_] != 0) ++first_empty_;
    if (first_empty_ < used_.size()) return first_ + static_cast<int32_t>(first_empty_) * kChunk;
    while (used_[first_not_full_] == kFull) ++first_not_full_;
    return first_ + static_cast<int32_t>(first_not_full_) * kChunk +
           std::countr_one(used_[first_not_full_]);
}

void RowPool::give(int32_t row) noexcept {
    const auto at = static_cast<uint32_t>(row - first_);
    const size_t word = at / kChunk;
    used_[word] &= ~(1u << (at % kChunk));
    ++n_free_;
    first_not_full_ = std::min(first_not_full_, word);
    if (used_[word] == 0) first_empty_ = std::min(first_empty_, word);
}

}  // namespace plait
