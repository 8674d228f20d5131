#include "memory/compaction.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

using testing::IsEmpty;

struct Report {
    int64_t rounds = 0;
    int64_t moves = 0;
    int64_t cells = 0;
};

Report defragment(Driver& driver, int64_t max_moves) {
    Report report;
    while (const int64_t n = driver.memory->defragment(max_moves, driver.moves)) {
        ++report.rounds;
        report.moves += std::ssize(driver.moves);
        report.cells += n;
        driver.carry_out_moves();
    }
    return report;
}

void expect_compact(const Driver& driver) {  // # S3-32
    const Memory& memory = *driver.memory;
    std::map<int32_t, std::set<int32_t>> used;
    for (const Cell& cell : memory.cells()) used[cell.stream].insert(cell.row);
    const auto per_stream = static_cast<int32_t>(memory.n_cells() / memory.n_streams());
    for (const auto& [stream, rows] : used) {
        EXPECT_EQ(*rows.begin(), stream * per_stream);
        EXPECT_EQ(*rows.rbegin(), stream * per_stream + std::ssize(rows) - 1);
    }
}

TEST(Defragment, EverySecondRowOf4096InChunksOf8) {  // # S3-04 # S3-20 # S3-21
    Driver driver(sized(4096, 1));
    driver.options.n_ubatch = 512;
    for (int i = 0; i < 2; ++i) driver.feed(0, 2048, 2048 * i);
    std::vector<int> expected;
    for (Position p = 0; p < 4096; p += 2) {
        ASSERT_TRUE(driver.memory->remove(0, {p, p + 1}));
        expected.push_back(p + 1);
    }
    EXPECT_EQ(driver.memory->count_runs().n_runs, 2048);
    const Report report = defragment(driver, 8);
    EXPECT_EQ(report.moves, 1024) << "each row past the end moves once";
    EXPECT_EQ(report.rounds, (report.moves + 7) / 8);
    expect_compact(driver);
    EXPECT_EQ(driver.tokens(0), expected);
    driver.feed(0, 2048, 5000);
    EXPECT_EQ(driver.memory->n_used(), 4096);
}

// Returns a memory in which sequences 0 and 1 have `n` tokens each, in alternating rows.
Driver make_alternating(int n) {
    MemoryOptions options = sized(4 * n, 4);
    options.n_cells = 4 * n;
    Driver driver(options);
    driver.feed(2, 4 * n);
    for (Position p = 0; p < 4 * n; p += 2) EXPECT_TRUE(driver.memory->remove(2, {p, p + 1}));
    for (int i = 0; i < n; ++i)
        for (const SequenceId s : {0, 1}) driver.feed(s, 1, 10000 + 1000 * s + i);
    EXPECT_TRUE(driver.memory->remove(2, {}));
    return driver;
}

TEST(Defragment, ShortRunsBecomeLong) {
    for (const int64_t max_moves : {1, 4, 500}) {
        Driver driver = make_alternating(100);
        const auto before = std::pair(driver.tokens(0), driver.tokens(1));
        const RunCount scattered = driver.memory->count_runs();
        EXPECT_EQ(scattered.n_keys, 200);
        EXPECT_EQ(scattered.n_runs, 200);
        EXPECT_EQ(scattered.min_runs, 2);
        const Report report = defragment(driver, max_moves);
        EXPECT_LE(report.cells, 2 * scattered.n_keys);
        expect_compact(driver);
        EXPECT_EQ(driver.memory->count_runs().n_runs, 2);
        EXPECT_EQ(std::pair(driver.tokens(0), driver.tokens(1)), before);
    }
}

TEST(Defragment, OneFreeRowSufficesToSortACache) {
    for (const int n_free : {1, 0}) {
        Driver driver = make_alternating(50);
        driver.feed(3, 100 - n_free);
        const RunCount scattered = driver.memory->count_runs();
        EXPECT_GT(scattered.n_runs, 190);
        std::vector<std::vector<int>> before;
        for (const SequenceId s : {0, 1, 3}) before.push_back(driver.tokens(s));
        defragment(driver, 5);
        expect_compact(driver);
        EXPECT_EQ(driver.memory->count_runs().n_runs, n_free > 0 ? 3 : scattered.n_runs);
        std::vector<std::vector<int>> after;
        for (const SequenceId s : {0, 1, 3}) after.push_back(driver.tokens(s));
        EXPECT_EQ(after, before);
    }
}

TEST(Defragment, EachStreamIsCompactedSeparately) {
    Driver driver(sized(64, 3, /*streams=*/true));
    for (const SequenceId s : {0, 1, 2}) driver.feed(s, 40, 100 * s);
    for (Position p = 0; p < 40; p += 4) ASSERT_TRUE(driver.memory->remove(1, {p, p + 2}));
    ASSERT_TRUE(driver.memory->remove(2, {0, 30}));
    const auto before = driver.tokens(1);
    defragment(driver, 2);
    expect_compact(driver);
    EXPECT_EQ(driver.tokens(1), before);
    EXPECT_EQ(driver.tokens(0).size(), 40u);
}

TEST(Defragment, MovesOfAdjacentRowsAreMerged) {  // # S3-08
    Driver driver(sized(3000, 2));
    driver.feed(0, 1000);
    driver.feed(1, 1000, 5000);
    ASSERT_TRUE(driver.memory->remove(0, {}));
    const int64_t cells = driver.memory->defragment(8, driver.moves);
    EXPECT_EQ(cells, 1000);
    EXPECT_EQ(driver.moves.size(), 1u);
    driver.carry_out_moves();
    expect_compact(driver);
    EXPECT_EQ(driver.tokens(1).front(), 5000);
    EXPECT_EQ(driver.memory->count_runs().n_runs, 1);
}

TEST(Defragment, NothingIsMovedInACompactCache) {  // # S3-22 # S3-23 # S3-24
    Driver driver(sized(64, 2));
    EXPECT_EQ(driver.memory->defragment(8, driver.moves), 0);
    driver.feed(0, 20);
    EXPECT_EQ(driver.memory->defragment(8, driver.moves), 0);
    EXPECT_THAT(driver.moves, IsEmpty());
    EXPECT_EQ(message_of<InvalidArgument>([&] { driver.memory->defragment(0, driver.moves); }),
              "max_moves is 0, expected 1 or more");
}

TEST(Defragment, TheResultDoesNotDependOnMaxMoves) {  // # S3-06
    std::vector<Cell> first;
    for (const int64_t max_moves : {1, 2, 7, 1000}) {
        Driver driver(sized(128, 3));
        for (int i = 0; i < 20; ++i)
            for (const SequenceId s : {0, 1, 2}) driver.feed(s, 2, 100 * s + 2 * i);
        for (Position p = 0; p < 40; p += 3) ASSERT_TRUE(driver.memory->remove(1, {p, p + 2}));
        ASSERT_TRUE(driver.memory->remove(0, {5, 25}));
        defragment(driver, max_moves);
        expect_compact(driver);
        if (first.empty()) first = driver.memory->cells();
        EXPECT_EQ(driver.memory->cells(), first) << max_moves;
    }
}

TEST(Defragment, PendingShiftsAndSharingAreKept) {  // # S3-30
    Driver driver(sized(32, 3));
    driver.feed(2, 4);
    driver.feed(0, 8, 10);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.memory->add(0, {6, INT32_MAX}, 5, driver.moves);
    driver.carry_out_moves();
    ASSERT_TRUE(driver.memory->remove(2, {}));
    const auto positions = driver.positions(0);
    EXPECT_GT(defragment(driver, 1).rounds, 0);
    expect_compact(driver);
    EXPECT_EQ(driver.positions(0), positions);
    EXPECT_EQ(driver.memory->n_used(), 10) << "six are shared";
    driver.apply_shifts();
    EXPECT_FALSE(driver.memory->has_shifts());
    for (const Cell& cell : driver.memory->cells())
        EXPECT_EQ(driver.rotations[0][static_cast<size_t>(cell.row)], cell.position[0]);
}

TEST(Defragment, EditsBetweenRoundsAreAllowed) {
    Driver driver = make_alternating(60);
    auto kept = driver.tokens(1);
    for (int i = 0; i < 5; ++i) {
        driver.memory->defragment(3, driver.moves);
        driver.carry_out_moves();
        ASSERT_TRUE(driver.memory->remove(0, {10 * i, 10 * i + 5}));
        driver.feed(1, 1, 7 + i);
        kept.push_back(7 + i);
    }
    defragment(driver, 3);
    expect_compact(driver);
    EXPECT_EQ(driver.tokens(1), kept);
    EXPECT_EQ(driver.tokens(0).size(), 60u - 25);
}

TEST(Defragment, AFailedAllocationChangesNothing) {
    Driver driver = make_alternating(20);
    for (int i = 0; i < 4; ++i)
        expect_all_or_nothing(driver, [&] { driver.memory->defragment(4, driver.moves); });
}

}  // namespace
}  // namespace plait
