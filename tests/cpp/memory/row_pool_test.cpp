#include "memory/row_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace plait {
namespace {

TEST(RowPool, TheWantedRowIsTakenIfItIsFree) {
    RowPool pool(100, 64);
    EXPECT_EQ(pool.take(RowPool::kNone), 100);
    EXPECT_EQ(pool.take(101), 101);
    EXPECT_EQ(pool.take(101), 132) << "the next free chunk";
    EXPECT_EQ(pool.take(133), 133);
    EXPECT_EQ(pool.take(164), 102) << "no chunk is free: the lowest row";
    EXPECT_EQ(pool.n_free(), 59);
}

TEST(RowPool, AllRowsOfAnIncompleteChunkAreUsed) {
    for (const int32_t n : {1, 31, 32, 33, 70}) {
        RowPool pool(0, n);
        std::vector<bool> taken(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; ++i) {
            const int32_t row = pool.take(RowPool::kNone);
            ASSERT_TRUE(row >= 0 && row < n);
            EXPECT_FALSE(taken[static_cast<size_t>(row)]);
            taken[static_cast<size_t>(row)] = true;
        }
        EXPECT_EQ(pool.take(RowPool::kNone), RowPool::kNone);
        EXPECT_EQ(pool.n_free(), 0);
    }
}

// RowPool::take() by trying every row.
int32_t expected(const std::vector<bool>& taken, int32_t wanted) {
    const auto n = static_cast<int32_t>(taken.size());
    const auto free = [&](int32_t r) { return r >= 0 && r < n && !taken[static_cast<size_t>(r)]; };
    if (free(wanted)) return wanted;
    for (int32_t chunk = 0; chunk + RowPool::kChunk <= n; chunk += RowPool::kChunk) {
        int32_t r = chunk;
        while (r < chunk + RowPool::kChunk && free(r)) ++r;
        if (r == chunk + RowPool::kChunk) return chunk;
    }
    for (int32_t r = 0; r < n; ++r)
        if (free(r)) return r;
    return RowPool::kNone;
}

TEST(RowPool, MatchesABruteForceSearchUnderRandomUse) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
        std::mt19937 random(seed);
        RowPool pool(0, 300);
        std::vector<bool> taken(300);
        for (int step = 0; step < 20000; ++step) {
            // Alternates between filling and emptying, so that the pool becomes both full and
            // empty.
            if (random() % 100 < (step / 700 % 2 == 0 ? 70u : 30u)) {
                const auto wanted = static_cast<int32_t>(random() % 302) - 1;
                const int32_t row = pool.take(wanted);
                ASSERT_EQ(row, expected(taken, wanted));
                if (row >= 0) taken[static_cast<size_t>(row)] = true;
            } else {
                const auto row = static_cast<int32_t>(random() % 300);
                ASSERT_EQ(pool.is_free(row), !taken[static_cast<size_t>(row)]);
                if (pool.is_free(row)) continue;
                pool.give(row);
                taken[static_cast<size_t>(row)] = false;
            }
            ASSERT_EQ(pool.n_free(), std::count(taken.begin(), taken.end(), false));
        }
    }
}

}  // namespace
}  // namespace plait
