// What products with block types and with floats share: how they are cut into tasks, and how the
// memory that they read next is prefetched.
#pragma once

#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu::amx {

// Tasks that a product with many rows is cut into. More of them would arrange or read the rows, and
// unpack the panels, too often.
inline int64_t wanted_tasks(int64_t threads) {
    constexpr int64_t kMinTasksOfTiles = 12, kPerThread = 2;
    return larger(kMinTasksOfTiles, kPerThread * threads);
}

// Sets the numbers of tasks of `cut` from its sizes, and returns how many tasks there are.
inline int64_t count_tasks(ProductCut& cut, int64_t panels, int64_t rows, int64_t matrices) {
    cut.panel_tasks = (panels + cut.panels - 1) / cut.panels;
    cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
    return cut.panel_tasks * cut.row_tasks * matrices;
}

// Prefetches memory into the second level cache, in equal shares while tiles are multiplied.
class Ahead {
public:
    Ahead() = default;
    PLAIT_INLINE_MEMBER Ahead(const void* first, int64_t bytes, int64_t shares)
        : next_(static_cast<const unsigned char*>(first)),
          end_(next_ + bytes),
          share_((bytes / shares + 63) / 64 * 64) {}

    PLAIT_INLINE_MEMBER void fetch() {
        const unsigned char* stop = next_ + share_;
        for (; next_ < stop && next_ < end_; next_ += 64) __builtin_prefetch(next_, 0, 2);
    }

private:
    const unsigned char* next_ = nullptr;
    const unsigned char* end_ = nullptr;
    int64_t share_ = 0;
};

}  // namespace plait::cpu::amx
