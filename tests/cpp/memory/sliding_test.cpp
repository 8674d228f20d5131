#include "memory/sliding.h"

#include <gmock/gmock.h>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"
#include "memory/window.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Window kWindow{WindowKind::sliding, 4};

MemorySpecs beside_full(Window window = kWindow) {
    return attention_specs({full_layer(), window_layer(window)});
}

MemoryOptions small_batches(int64_t n_ctx, int32_t n_seq_max, bool streams = false) {
    MemoryOptions options = sized(n_ctx, n_seq_max, streams);
    options.n_batch = 8;
    return options;
}

TEST(Sliding, RowsThatLaterTokensCannotSeeAreFreed) {
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 3, 10);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(10, 11, 12));
    driver.feed(0, 3, 13);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(13, 14, 15));
    EXPECT_THAT(driver.tokens(0, 0), ElementsAre(10, 11, 12, 13, 14, 15));
    EXPECT_EQ(driver.memory->positions(0)->min, 0);
    EXPECT_EQ(driver.memory->positions(0)->max, 5);
}

TEST(Sliding, ASequenceCanGrowWithoutLimit) {
    Driver driver(small_batches(16, 2), attention_specs({window_layer(kWindow)}));
    for (int i = 0; i < 20; ++i) driver.feed(1, 8, 8 * i);
    EXPECT_EQ(kind_of(driver), "sliding");
    EXPECT_EQ(driver.memory->positions(1)->max, 159);
    EXPECT_EQ(driver.memory->positions(1)->min, 157);
    EXPECT_EQ(driver.memory->n_used(), 3);
    for (const Cell& cell : driver.memory->cells()) EXPECT_EQ(cell.ordinal, cell.position[0]);
}

TEST(Sliding, TheCapacityIsOneWindowPerSequencePlusOneBatch) {
    const MemoryOptions unified = small_batches(64, 3);
    Driver driver(unified, beside_full());
    EXPECT_EQ(driver.groups()[0].n_rows, 3u * 64);
    EXPECT_EQ(driver.groups()[1].n_rows, 3u * 3 + 8);
    Driver streams(small_batches(64, 3, /*streams=*/true), beside_full());
    EXPECT_EQ(streams.groups()[1].n_rows, 3u * (3 + 8));
    MemoryOptions all = unified;
    all.swa_full = true;
    Driver kept(all, beside_full());
    EXPECT_EQ(kept.groups()[1].n_rows, 3u * 64);
    EXPECT_EQ(kind_of(kept), "sliding");
    // When all windows are full, a whole batch of any sequence still fits.
    for (int round = 0; round < 3; ++round)
        for (SequenceId s = 0; s < 3; ++s) driver.feed(s, 8), streams.feed(s, 8);
}

TEST(Sliding, BothCachesHaveStreams) {  // # S2-18
    Driver driver(small_batches(64, 2, /*streams=*/true), beside_full());
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i), driver.feed(1, 8, 100 + 8 * i);
    EXPECT_EQ(driver.memory->n_streams(), 2);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(21, 22, 23));
    EXPECT_THAT(driver.tokens(1, 1), ElementsAre(121, 122, 123));
    for (const int32_t row : driver.memory->rows_of(1, 1)) EXPECT_GE(row, 3 + 8);
}

TEST(Sliding, WindowsAreExactAtTheirEdges) {  // # S4-28
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 6);
    const auto microbatches = driver.place(Driver::batch_of(0, 6, 6));
    ASSERT_EQ(microbatches.size(), 2u);
    const auto first = driver.memory->view(1, 0);  // holds tokens 3, 4, 5, then 6 to 9
    EXPECT_THAT(first.first, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(first.last, ElementsAre(4, 5, 6, 7));
    const auto second = driver.memory->view(1, 1);
    EXPECT_THAT(second.first, ElementsAre(4, 5));
    EXPECT_THAT(second.last, ElementsAre(8, 9));
    const auto full = driver.memory->view(0, 1);
    EXPECT_THAT(full.first, ElementsAre(0, 0));
    EXPECT_THAT(full.last, ElementsAre(11, 12));
    driver.memory->rollback();
}

TEST(Sliding, AFailedCallKeepsTheWholeWindow) {  // # S4-08
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 8);
    const auto before = rows_of_all(*driver.memory);
    const auto microbatches = driver.place(Driver::batch_of(0, 8, 8));
    driver.write(microbatches[0], 0);
    driver.memory->rollback();
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(5, 6, 7));
}

TEST(Sliding, RewindingBeyondFreedKeysFailsAndChangesNothing) {
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 4);
    EXPECT_TRUE(driver.memory->remove(0, {4, INT32_MAX}));
    driver.feed(0, 2, 4);  // holds 3, 4, 5
    const auto before = rows_of_all(*driver.memory);
    EXPECT_FALSE(driver.memory->remove(0, {5, INT32_MAX})) << "the next token would see 2";
    EXPECT_FALSE(driver.memory->remove(0, {1, INT32_MAX}));
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    EXPECT_TRUE(driver.memory->remove(0, {0, 2})) << "no later token sees these";
    EXPECT_THAT(driver.tokens(0, 0), ElementsAre(2, 3, 4, 5));
    EXPECT_TRUE(driver.memory->remove(0, {4, 5})) << "the end of the sequence stays";
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(3, 5));
    EXPECT_TRUE(driver.memory->remove(0, {}));
    driver.feed(0, 2, 50);
    EXPECT_EQ(driver.memory->positions(0)->max, 1);
}

TEST(Sliding, KeysInTheWindowCanBeRemoved) {
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 3);  // nothing is freed yet
    EXPECT_TRUE(driver.memory->remove(0, {1, INT32_MAX}));
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(0));
    driver.feed(0, 1, 7);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(0, 7));
}

class SlidingModes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sliding, SlidingModes, testing::Bool(), [](const auto& mode) {
    return std::string(mode.param ? "Streams" : "Unified");
});

TEST_P(SlidingModes, AForkIsACheckpoint) {
    Driver driver(small_batches(64, 2, GetParam()), beside_full());
    driver.feed(0, 8);
    driver.memory->copy(0, 1, {}, driver.moves);
    EXPECT_EQ(driver.moves.empty(), !GetParam());
    driver.carry_out_moves();
    for (int i = 1; i < 5; ++i) driver.feed(0, 8, 8 * i);
    EXPECT_THAT(driver.tokens(1, 1), ElementsAre(5, 6, 7));
    EXPECT_EQ(driver.memory->rewind_point(0, 30), (RewindPoint{8, 1}));
    EXPECT_EQ(driver.memory->rewind_point(0, 40), (RewindPoint{40, 0}));
    EXPECT_EQ(driver.memory->rewind_point(0, 7), (RewindPoint{0, 0}));
    driver.feed(1, 1, 100);
    EXPECT_THAT(driver.tokens(1, 1), ElementsAre(6, 7, 100));
    EXPECT_EQ(driver.memory->rewind_point(0, 30), (RewindPoint{0, 0})) << "the window has moved on";
}

TEST_P(SlidingModes, RewindingToAForkAllocatesBeforeItChangesAnything) {
    Driver driver(small_batches(64, 3, GetParam()), beside_full());
    driver.feed(0, 8);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.carry_out_moves();
    for (int i = 1; i < 5; ++i) driver.feed(0, 8, 8 * i);
    driver.moves.shrink_to_fit();
    const RewindPoint point{8, 1};
    ASSERT_EQ(driver.memory->rewind_point(0, 30), point);
    const int refused =
        expect_all_or_nothing(driver, [&] { driver.memory->refork(point, 0, driver.moves); });
    EXPECT_GT(refused, 0);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(5, 6, 7));
    EXPECT_EQ(driver.positions(0).size(), 8u);
}

TEST_P(SlidingModes, ARangeCanBeCopiedIfTheWindowAtItsEndIsStored) {
    Driver driver(small_batches(64, 2, GetParam()), beside_full());
    driver.feed(0, 8);
    const auto before = rows_of_all(*driver.memory);
    EXPECT_EQ(message_of<UnsupportedError>([&] {
                  driver.memory->copy(0, 1, {0, 7}, driver.moves);
              }),
              "positions [0, 7) of sequence 0 cannot be copied to sequence 1: the token after "
              "position 6 would attend to keys up to position 4, which the sliding window has "
              "already freed; copy earlier, or use swa_full=True");
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    EXPECT_THAT(driver.moves, IsEmpty());
    driver.memory->copy(0, 1, {6, 8}, driver.moves);
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(1, 0), ElementsAre(6, 7));
    EXPECT_THAT(driver.tokens(1, 1), ElementsAre(6, 7));
    driver.memory->copy(0, 1, {2, 8}, driver.moves);
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(1, 0), ElementsAre(2, 3, 4, 5, 6, 7));
    EXPECT_THAT(driver.tokens(1, 1), ElementsAre(5, 6, 7));
}

TEST_P(SlidingModes, AShiftThatWouldMakeFreedKeysVisibleThrows) {
    Driver driver(small_batches(64, 1, GetParam()), beside_full());
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i);  // holds 21, 22, 23
    // Context shift: removes old tokens and shifts the rest down.
    EXPECT_TRUE(driver.memory->remove(0, {2, 12}));
    driver.memory->add(0, {12, INT32_MAX}, -10, driver.moves);
    EXPECT_EQ(driver.memory->positions(0)->max, 13);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(21, 22, 23));
    // Two keys remain; after the shift their window would include position 1, which was freed.
    EXPECT_TRUE(driver.memory->remove(0, {1, 12}));
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(22, 23));
    const auto before = rows_of_all(*driver.memory);
    EXPECT_EQ(message_of<UnsupportedError>([&] {
                  driver.memory->add(0, {12, INT32_MAX}, -11, driver.moves);
              }),
              "sequence 0 would attend to keys up to position 0, which its window has freed; "
              "use swa_full=True to keep all keys");
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    EXPECT_EQ(driver.memory->positions(0)->max, 13);
}

TEST_P(SlidingModes, DiscardingARangeFailsAsAWhole) {
    Driver driver(small_batches(64, 1, GetParam()), beside_full());
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i);  // holds 21, 22, 23
    const auto before = rows_of_all(*driver.memory);
    EXPECT_EQ(message_of<UnsupportedError>([&] {
                  driver.memory->discard(0, {20, 22}, driver.moves);
              }),
              "without positions [20, 22), sequence 0 would attend to keys up to position 19, "
              "which its window has freed; use swa_full=True to keep all keys");
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    EXPECT_EQ(driver.memory->positions(0)->max, 23);
    driver.memory->discard(0, {5, 8}, driver.moves);  // in the middle of the freed keys
    EXPECT_EQ(driver.memory->positions(0)->max, 20);
    driver.memory->discard(0, {2, 18}, driver.moves);
    EXPECT_THAT(driver.memory->positions_of(0, 0), ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(21, 22, 23));
}

TEST(Sliding, AShiftOfSomeFreedPositionsMovesOnlyThose) {
    Driver driver(small_batches(64, 1), attention_specs({window_layer(kWindow)}));
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i);  // holds 21, 22, 23
    EXPECT_EQ(message_of<InvalidArgument>([&] {
                  driver.memory->add(0, {0, 5}, -1, driver.moves);
              }),
              "position 0 of sequence 0 would become -1; positions must not be negative");
    // The memory does not know which of the first positions still had tokens.
    driver.memory->add(0, {0, 5}, 1000, driver.moves);
    EXPECT_FALSE(driver.memory->remove(0, {.begin = 22})) << "the next token would see 20";
    EXPECT_THROW(driver.memory->add(0, {}, INT32_MAX, driver.moves), InvalidArgument);
    driver.memory->add(0, {3, 5}, 16, driver.moves);  // to positions 19 and 20
    EXPECT_FALSE(driver.memory->remove(0, {.begin = 23}));
    driver.memory->add(0, {.begin = 20}, 30, driver.moves);
    EXPECT_EQ(driver.memory->positions(0)->max, 53);
    EXPECT_FALSE(driver.memory->remove(0, {.begin = 53})) << "the next token would see 50";
    driver.memory->add(0, {2'000'000'000, INT32_MAX}, 2'000'000'000, driver.moves);
    EXPECT_EQ(driver.memory->positions(0)->max, 53);
}

TEST(Sliding, AGapOpenedByAShiftFreesKeys) {
    Driver driver(small_batches(64, 1), beside_full());
    driver.feed(0, 3);
    driver.memory->add(0, {2, INT32_MAX}, 10, driver.moves);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(2));
    EXPECT_THAT(driver.tokens(0, 0), ElementsAre(0, 1, 2));
}

TEST(Sliding, AChunkedWindowKeepsTheKeysOfTheCurrentChunk) {
    Driver driver(small_batches(64, 1), beside_full({WindowKind::chunked, 4}));
    driver.feed(0, 6);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(4, 5));
    driver.feed(0, 2, 6);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(7))
        << "the next chunk sees none, but the last key stays";
    driver.feed(0, 1, 8);
    EXPECT_THAT(driver.tokens(0, 1), ElementsAre(8));
}

TEST(Sliding, MaxKeptIsTheLargestNumberOfKeptKeys) {
    for (const WindowKind kind :
         {WindowKind::sliding, WindowKind::chunked, WindowKind::symmetric}) {
        for (int32_t tokens = 1; tokens < 20; ++tokens) {
            const Window window{kind, tokens};
            int64_t max = 0;
            for (Position last = 0; last < 100; ++last)
                max = std::max<int64_t>(max, last + 1 - oldest_kept(window, last));
            EXPECT_EQ(max, max_kept(window)) << tokens;
        }
    }
}

TEST(Sliding, WithSeveralAxesAllRowsAreKept) {
    MemoryOptions options = small_batches(64, 1);
    options.axes = 4;
    Driver driver(options, beside_full());
    EXPECT_EQ(driver.groups()[1].n_rows, 64u);
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i);
    EXPECT_EQ(driver.tokens(0, 1).size(), 24u);
}

TEST_P(SlidingModes, ARepeatedStepAllocatesNothing) {
    MemoryOptions options = small_batches(2000, 4, GetParam());
    Driver driver(options, beside_full({WindowKind::sliding, 32}));
    Batch batch;
    for (SequenceId s = 0; s < 4; ++s) batch.add(0, {}, std::span(&s, 1), true);
    const auto steps = [&](int n) {
        for (int i = 0; i < n; ++i) driver.decode(batch);
    };
    steps(900);
    driver.memory->clear();
    const uint64_t before = n_allocations();
    steps(900);
    EXPECT_EQ(n_allocations(), before);
}

TEST_P(SlidingModes, AFailedAllocationChangesNothing) {
    Driver driver(small_batches(256, 3, GetParam()), beside_full({WindowKind::sliding, 12}));
    for (int i = 0; i < 6; ++i)
        for (SequenceId s = 0; s < 2; ++s)
            expect_all_or_nothing(driver, [&] { driver.feed(s, 5, 100 * s + 5 * i); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(0, 2, {}, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(1, 2, {25, 30}, driver.moves); });
    expect_all_or_nothing(driver, [&] { EXPECT_TRUE(driver.memory->remove(1, {22, 24})); });
    expect_all_or_nothing(driver, [&] { driver.memory->add(2, {}, 3, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->discard(0, {4, 9}, driver.moves); });
    EXPECT_EQ(driver.tokens(2, 1).back(), 129);
    EXPECT_EQ(driver.memory->positions(2)->max, 32);
}

}  // namespace
}  // namespace plait
