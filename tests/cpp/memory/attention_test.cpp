
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "all_or_nothing.h"
#include "allocations.h"
#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Unified, EverySequenceIsInStreamZero) {  // # S2-36
    Driver driver(sized(8, 3));
    for (const SequenceId s : {0, 1, 2}) driver.feed(s, 2);
    EXPECT_EQ(kind_of(driver), "unified");
    EXPECT_EQ(driver.memory->n_streams(), 1);
    for (const Cell& cell : driver.memory->cells()) EXPECT_EQ(cell.stream, 0);
}

TEST(Streams, EachSequenceHasItsOwnStream) {  // # S2-41
    Driver driver(sized(8, 3, /*streams=*/true));
    for (const SequenceId s : {2, 0, 1}) driver.feed(s, 2);
    EXPECT_EQ(kind_of(driver), "streams");
    EXPECT_EQ(driver.memory->n_streams(), 3);
    for (const Cell& cell : driver.memory->cells()) {
        EXPECT_EQ(cell.sequences, std::vector<SequenceId>{cell.stream});
        EXPECT_EQ(cell.row / 8, cell.stream);
    }
}

TEST(Streams, FillingOneStreamLeavesTheOthersFree) {  // # S2-60
    Driver driver(sized(8, 2, /*streams=*/true));
    driver.feed(0, 8);
    EXPECT_THROW(driver.feed(0, 1), CacheFull);
    driver.feed(1, 8, 100);
    EXPECT_EQ(driver.memory->n_used(), 16);
    EXPECT_THAT(driver.tokens(1), ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
}

TEST(Unified, SequencesThatGrowAtTheSameTimeGetConsecutiveRows) {
    Driver driver(sized(64, 3));
    for (int i = 0; i < 20; ++i)
        for (const SequenceId s : {0, 1, 2}) driver.feed(s, 1);
    Batch batch;
    for (const SequenceId s : {0, 1, 2}) batch.add(0, {}, std::span(&s, 1), true);
    driver.place(batch);
    EXPECT_THAT(driver.memory->view(0, 0).run_begin, ElementsAre(0, 1, 2, 3));
    driver.memory->rollback();
}

TEST(Unified, ScatteredFreeRowsAreAllUsed) {  // # S1-47
    MemoryOptions options = sized(64, 64);
    options.n_cells = 64;
    Driver driver(options);
    Batch batch;
    for (SequenceId s = 0; s < 64; ++s) batch.add(s, {}, std::span(&s, 1), false);
    driver.decode(batch);
    std::vector<bool> freed(64);
    for (const Cell& cell : driver.memory->cells()) {
        if (cell.row % 2 == 0) continue;
        ASSERT_TRUE(driver.memory->remove(cell.sequences[0], {}));
        freed[static_cast<size_t>(cell.sequences[0])] = true;
    }
    const auto s = static_cast<SequenceId>(std::ranges::find(freed, true) - freed.begin());
    driver.feed(s, 32, 1000);
    EXPECT_EQ(driver.memory->n_used(), 64);
    std::vector<int> expected(32);
    std::iota(expected.begin(), expected.end(), 1000);
    EXPECT_EQ(driver.tokens(s), expected);
}

TEST(Unified, ACopyTakesNoRow) {
    Driver driver(sized(8, 3));
    driver.feed(0, 5, 10);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.memory->copy(0, 2, {1, 4}, driver.moves);
    EXPECT_THAT(driver.moves, IsEmpty());
    EXPECT_EQ(driver.memory->n_used(), 5);
    EXPECT_THAT(driver.tokens(1), ElementsAre(10, 11, 12, 13, 14));
    EXPECT_THAT(driver.tokens(2), ElementsAre(11, 12, 13));
    EXPECT_TRUE(driver.memory->remove(0, {}));
    EXPECT_EQ(driver.memory->n_used(), 5) << "a row is used while a sequence holds it";
}

TEST(Streams, ACopyMergesMovesOfAdjacentRows) {
    Driver driver(sized(8, 2, /*streams=*/true));
    driver.feed(0, 5, 10);
    driver.memory->copy(0, 1, {1, 4}, driver.moves);
    EXPECT_THAT(driver.moves, ElementsAre(RowMove{0, 1, 8, 3}));
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(1), ElementsAre(11, 12, 13));
    EXPECT_THAT(driver.positions(1), ElementsAre(1, 2, 3));
}

class EitherMode : public testing::TestWithParam<bool> {
protected:
    Driver make(int64_t n_ctx, int32_t n_seq_max) {
        return Driver(sized(n_ctx, n_seq_max, GetParam()));
    }
};
INSTANTIATE_TEST_SUITE_P(Attention, EitherMode, testing::Bool(), [](const auto& mode) {
    return std::string(mode.param ? "Streams" : "Unified");
});

TEST_P(EitherMode, ACopyReplacesTheRangeAndKeepsTheRest) {  // # S2-50
    Driver driver = make(16, 2);
    driver.feed(0, 6, 10);
    driver.feed(1, 8, 20);
    driver.memory->copy(0, 1, {2, 5}, driver.moves);
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(1), ElementsAre(20, 21, 12, 13, 14, 25, 26, 27));
    EXPECT_THAT(driver.positions(1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(1), ElementsAre(10, 11, 12, 13, 14, 15));
    EXPECT_EQ(driver.memory->positions(1)->max, 5);
    driver.memory->copy(1, 1, {0, 3}, driver.moves);
    EXPECT_THAT(driver.tokens(1), ElementsAre(10, 11, 12, 13, 14, 15));
}

TEST_P(EitherMode, ABatchThatDoesNotFitTakesNoRows) {  // # S3-02
    Driver driver = make(10, 2);
    driver.feed(0, 3);
    const auto before = driver.memory->cells();
    try {
        driver.feed(0, 8);
        FAIL() << "8 tokens fit into 7 cells";
    } catch (const CacheFull& full) {
        EXPECT_EQ(full.needed, 8);
        EXPECT_EQ(full.free, 7);
        EXPECT_STREQ(full.what(), "sequence 0 needs 8 more cells, 7 of its n_ctx = 10 are free");
    }
    EXPECT_EQ(driver.memory->cells(), before);
    driver.feed(0, 7);
    EXPECT_EQ(driver.memory->positions(0)->max, 9);
}

TEST(Unified, SequencesShareTheFreeRows) {
    MemoryOptions options = sized(10, 2);
    options.n_cells = 12;
    Driver driver(options);
    driver.feed(0, 9);
    EXPECT_EQ(message_of<CacheFull>([&] { driver.feed(1, 4); }),
              "the batch needs 4 cells, 3 of 12 are free");
    driver.feed(1, 3);
    EXPECT_EQ(driver.memory->n_used(), 12);
}

TEST_P(EitherMode, MicrobatchesSeeKeysOfEarlierButNotOfLaterMicrobatches) {
    Driver driver = make(16, 1);
    Batch batch;
    const SequenceId zero[] = {0};
    for (int i = 0; i < 6; ++i) batch.add(i, {}, zero, false);
    ASSERT_EQ(driver.place(batch).size(), 2u);
    const auto first = driver.memory->view(0, 0);
    EXPECT_THAT(first.runs, ElementsAre(plait::Run{0, 4, 0, 0}));
    EXPECT_THAT(first.last, ElementsAre(1, 2, 3, 4));
    const auto second = driver.memory->view(0, 1);
    EXPECT_THAT(second.runs, ElementsAre(plait::Run{0, 6, 0, 0}));
    EXPECT_THAT(second.last, ElementsAre(5, 6));
    driver.memory->rollback();
    EXPECT_EQ(driver.memory->n_used(), 0);
}

TEST_P(EitherMode, OrdinalsContinueFromTheLastKeyRegardlessOfItsPosition) {
    Driver driver = make(16, 1);
    driver.feed(0, 6);
    ASSERT_TRUE(driver.memory->remove(0, {1, 4}));
    driver.memory->add(0, {4, INT32_MAX}, -3, driver.moves);
    driver.feed(0, 1);
    std::vector<int32_t> ordinals;
    for (const Cell& cell : driver.memory->cells()) ordinals.push_back(cell.ordinal);
    std::ranges::sort(ordinals);
    EXPECT_THAT(ordinals, ElementsAre(0, 4, 5, 6));
    EXPECT_THAT(driver.positions(0), ElementsAre(0, 1, 2, 3));
    EXPECT_TRUE(driver.memory->remove(0, {}));
    driver.feed(0, 1);
    EXPECT_EQ(driver.memory->cells()[0].ordinal, 0);
}

TEST_P(EitherMode, RemovingAnEmptyRangeChangesNothing) {
    Driver driver = make(8, 2);
    driver.feed(0, 4);
    EXPECT_TRUE(driver.memory->remove(0, {2, 2}));
    EXPECT_TRUE(driver.memory->remove(0, {4, 9}));
    EXPECT_TRUE(driver.memory->remove(1, {}));
    EXPECT_EQ(driver.memory->n_used(), 4);
}

TEST(Unified, ShiftingASequenceCopiesSharedRowsFirst) {
    Driver driver(sized(8, 2));
    driver.feed(0, 4, 10);
    driver.memory->copy(0, 1, {}, driver.moves);
    ASSERT_TRUE(driver.memory->remove(1, {0, 2}));
    driver.memory->add(1, {2, INT32_MAX}, -2, driver.moves);
    EXPECT_THAT(driver.moves, ElementsAre(RowMove{0, 2, 4, 2}));
    driver.carry_out_moves();
    EXPECT_THAT(driver.tokens(0), ElementsAre(10, 11, 12, 13));
    EXPECT_THAT(driver.positions(0), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(driver.tokens(1), ElementsAre(12, 13));
    EXPECT_THAT(driver.positions(1), ElementsAre(0, 1));

    std::vector<KeyShift> shifts;
    driver.memory->take_shifts(shifts);
    ASSERT_EQ(shifts.size(), 2u);
    EXPECT_EQ(shifts[0].row, 4);
    EXPECT_EQ(shifts[0].delta, -2);
    EXPECT_FALSE(driver.memory->has_shifts());
}

TEST_P(EitherMode, CopiesIncludePendingShifts) {
    Driver driver = make(8, 2);
    driver.feed(0, 3);
    driver.memory->add(0, {}, 4, driver.moves);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.carry_out_moves();
    for (const Cell& cell : driver.memory->cells()) EXPECT_EQ(cell.shift, 4);
    driver.memory->divide(1, {}, 2, driver.moves);
    driver.carry_out_moves();
    EXPECT_THAT(driver.positions(1), ElementsAre(2, 2, 3));
    EXPECT_THAT(driver.positions(0), ElementsAre(4, 5, 6));
    driver.apply_shifts();
    for (const Cell& cell : driver.memory->cells())
        EXPECT_EQ(driver.rotations[0][static_cast<size_t>(cell.row)], cell.position[0]);
}

TEST(Unified, ShiftsAddUpAtLargePositions) {
    Driver driver(sized(8, 1));
    driver.feed(0, 3);
    driver.memory->add(0, {}, INT32_MAX - 10, driver.moves);
    driver.memory->add(0, {}, -1, driver.moves);
    for (const Cell& cell : driver.memory->cells()) EXPECT_EQ(cell.shift, INT32_MAX - 11);
}

TEST_P(EitherMode, AnInvalidShiftChangesNothing) {
    Driver driver = make(8, 1);
    driver.feed(0, 6);
    const auto before = driver.memory->cells();
    const auto add = [&](PositionRange range, int32_t delta) {
        return message_of<InvalidArgument>(
            [&] { driver.memory->add(0, range, delta, driver.moves); });
    };
    EXPECT_EQ(add({}, -1),
              "position 0 of sequence 0 would become -1; positions must not be negative");
    EXPECT_EQ(add({3, INT32_MAX}, -2),
              "position 3 of sequence 0 would become 1, before the previous token's position 2");
    EXPECT_EQ(add({0, 3}, 2),
              "position 2 of sequence 0 would become 4, after the next token's position 3");
    EXPECT_EQ(add({}, INT32_MAX - 4),
              "position 5 of sequence 0 would become 2147483648, expected at most 2147483646");
    EXPECT_EQ(message_of<InvalidArgument>([&] { driver.memory->divide(0, {}, 0, driver.moves); }),
              "the divisor is 0, expected 1 or more");
    EXPECT_EQ(driver.memory->cells(), before);
    EXPECT_THAT(driver.moves, IsEmpty());
}

TEST(Unified, AShiftWithTooFewFreeRowsChangesNothing) {
    MemoryOptions options = sized(8, 2);
    options.n_cells = 8;
    Driver driver(options);
    driver.feed(0, 6);
    driver.memory->copy(0, 1, {}, driver.moves);
    const auto before = driver.memory->cells();
    EXPECT_EQ(message_of<CacheFull>([&] { driver.memory->add(1, {}, 1, driver.moves); }),
              "sequence 1 shares 6 of the cells to shift, which must be copied first; 2 cells "
              "are free");
    EXPECT_EQ(driver.memory->cells(), before);
    EXPECT_THAT(driver.moves, IsEmpty());
}

TEST_P(EitherMode, ACopyThatExceedsTheContextLengthThrows) {
    Driver driver = make(8, 2);
    Batch later;
    const SequenceId one[] = {1};
    for (Position p = 20; p < 24; ++p) later.add(0, std::span(&p, 1), one, false);
    driver.decode(later);
    driver.feed(0, 6);
    const auto before = driver.memory->cells();
    EXPECT_EQ(message_of<CacheFull>([&] {
                  driver.memory->copy(0, 1, {0, 6}, driver.moves);
              }),
              "copying sequence 0 to sequence 1 needs 6 cells, 4 of its n_ctx = 8 are free");
    EXPECT_EQ(driver.memory->cells(), before);
}

TEST(Unified, ATokenOfSeveralSequencesTakesOneRow) {
    Driver driver(sized(8, 3));
    Batch batch;
    const SequenceId all[] = {2, 0, 1};
    const SequenceId one[] = {1};
    batch.add(7, {}, all, true);
    batch.add(8, {}, all, true);
    batch.add(9, {}, one, true);
    driver.decode(batch);
    EXPECT_EQ(driver.memory->n_used(), 3);
    EXPECT_THAT(driver.tokens(0), ElementsAre(7, 8));
    EXPECT_THAT(driver.tokens(1), ElementsAre(7, 8, 9));
    EXPECT_THAT(driver.tokens(2), ElementsAre(7, 8));
    EXPECT_THAT(driver.memory->cells()[0].sequences, ElementsAre(0, 1, 2));
}

TEST(Streams, ATokenOfSeveralSequencesThrowsBeforeAnythingChanges) {  // # S2-27
    Driver driver(sized(8, 2, /*streams=*/true));
    Batch batch;
    const SequenceId both[] = {0, 1};
    batch.add(7, {}, both, true);
    EXPECT_THROW(driver.decode(batch), BatchError);
    EXPECT_EQ(driver.memory->n_used(), 0);
    Driver unified(sized(8, 2));
    unified.decode(batch);
    EXPECT_EQ(unified.memory->n_used(), 1);
}

TEST_P(EitherMode, KeepEmptiesEveryOtherSequence) {
    Driver driver = make(8, 3);
    for (const SequenceId s : {0, 1, 2}) driver.feed(s, 2, 10 * s);
    driver.memory->keep(1);
    EXPECT_EQ(driver.memory->n_used(), 2);
    EXPECT_THAT(driver.tokens(1), ElementsAre(10, 11));
    EXPECT_FALSE(driver.memory->positions(0).has_value());
}

TEST(SeveralAxes, TheNextPositionFollowsTheLargestOnAnyAxis) {
    MemoryOptions options = sized(16, 1);
    options.axes = 4;
    Driver driver(options);
    Batch batch;
    const SequenceId zero[] = {0};
    for (const int x : {3, 4, 9}) {
        const Position patch[] = {3, 3, x, 1};
        batch.add(x, patch, zero, false);
    }
    driver.decode(batch);
    EXPECT_EQ(driver.memory->positions(0)->min, 3);
    EXPECT_EQ(driver.memory->positions(0)->max, 9);
    EXPECT_THAT(driver.memory->cells()[2].position, ElementsAre(3, 3, 9, 1));
    driver.feed(0, 1);
    EXPECT_EQ(driver.memory->positions(0)->max, 10);
    ASSERT_TRUE(driver.memory->remove(0, {10, INT32_MAX}));
    EXPECT_EQ(driver.memory->positions(0)->max, 9);

    const auto before = driver.memory->cells();
    EXPECT_FALSE(driver.memory->can_shift());
    EXPECT_THROW(driver.memory->add(0, {}, 1, driver.moves), UnsupportedError);
    EXPECT_THROW(driver.memory->divide(0, {}, 2, driver.moves), UnsupportedError);
    EXPECT_EQ(driver.memory->cells(), before);
}

TEST_P(EitherMode, ARepeatedStepAllocatesNothing) {
    MemoryOptions options = sized(4096, 16, GetParam());
    options.n_ubatch = 16;
    Driver driver(options);
    Batch batch;
    for (SequenceId s = 0; s < 16; ++s) batch.add(0, {}, std::span(&s, 1), true);
    const auto steps = [&](int n) {
        for (int i = 0; i < n; ++i) driver.decode(batch);
    };
    steps(600);
    driver.memory->clear();
    const uint64_t before = n_allocations();
    steps(600);
    driver.place(batch);
    driver.memory->rollback();
    EXPECT_EQ(n_allocations(), before);
}

TEST_P(EitherMode, RemovedSequencesLeakNoRows) {  // # S4-14
    constexpr int32_t kUsers = 64;
    MemoryOptions options = sized(64, kUsers, GetParam());
    options.n_ubatch = kUsers;
    Driver driver(options);
    std::mt19937 random(7);
    std::vector<int> length(kUsers, 0);
    for (int step = 0; step < 10000; ++step) {
        Batch batch;
        for (SequenceId s = 0; s < kUsers; ++s) {
            int& n = length[static_cast<size_t>(s)];
            if (n == 64 || (n > 0 && random() % 40 == 0)) {
                ASSERT_TRUE(driver.memory->remove(s, {}));
                n = 0;
            }
            if (n == 0 && random() % 10 > 0) continue;
            batch.add(1000 * s + n++, {}, std::span(&s, 1), false);
        }
        if (batch.size() > 0) driver.decode(batch);
        ASSERT_EQ(driver.memory->n_used(), std::accumulate(length.begin(), length.end(), 0));
        if (step % 1000 > 0) continue;
        for (SequenceId s = 0; s < kUsers; ++s) {
            std::vector<int> own(static_cast<size_t>(length[static_cast<size_t>(s)]));
            std::iota(own.begin(), own.end(), 1000 * s);
            ASSERT_EQ(driver.tokens(s), own);
        }
    }
    driver.memory->clear();
    EXPECT_EQ(driver.memory->n_used(), 0);
}

TEST_P(EitherMode, AFailedAllocationChangesNothing) {
    Driver driver = make(256, 4);
    Batch batch;
    for (int i = 0; i < 40; ++i)
        for (SequenceId s = 0; s < 3; ++s) batch.add(100 * s + i, {}, std::span(&s, 1), false);
    expect_all_or_nothing(driver, [&] { driver.decode(batch); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(0, 3, {5, 30}, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(1, 2, {8, 12}, driver.moves); });
    expect_all_or_nothing(driver, [&] { EXPECT_TRUE(driver.memory->remove(1, {3, 20})); });
    expect_all_or_nothing(driver, [&] { driver.memory->add(3, {12, INT32_MAX}, 3, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->divide(2, {}, 2, driver.moves); });
    EXPECT_THAT(driver.positions(1).size(), 23);
    EXPECT_EQ(driver.tokens(3).size(), 25u);
    EXPECT_EQ(driver.tokens(3).front(), 5);
    EXPECT_EQ(driver.positions(3).back(), 32);
    EXPECT_EQ(driver.tokens(2)[8], 108);
    EXPECT_EQ(driver.positions(2)[39], 19);
    std::vector<KeyShift> shifts;
    expect_all_or_nothing(driver, [&] { driver.memory->take_shifts(shifts); });
    EXPECT_FALSE(driver.memory->has_shifts());
    EXPECT_EQ(shifts.size(), 18u + 39u);
}

TEST(Layout, LayersWithTheSameWindowShareAGroup) {
    AttentionSpec wide = full_layer();
    wide.n_kv_heads = 8;
    AttentionSpec window = full_layer();
    window.window = {WindowKind::sliding, 128};
    AttentionSpec latent{.n_kv_heads = 1, .key_dim = 576, .value_dim = 0};
    Driver driver(sized(8, 2), {{full_layer()}, {}, {window}, {wide}, {latent}, {window}});
    const MemoryLayout& layout = driver.memory->layout();
    EXPECT_EQ(layout.groups.size(), 2u);
    EXPECT_EQ(layout.group_of(0, 0), layout.group_of(3, 0));
    EXPECT_EQ(layout.group_of(0, 0), layout.group_of(4, 0));
    EXPECT_EQ(layout.group_of(2, 0), layout.group_of(5, 0));
    EXPECT_NE(layout.group_of(0, 0), layout.group_of(2, 0));
    EXPECT_THROW(layout.at({4, 0, 1}), InternalError) << "a latent row holds its values";
    EXPECT_THROW(layout.at({1, 0, 0}), InternalError);
    EXPECT_EQ(kind_of(driver), "sliding");
    // 16 rows of f16: 2 x 8 heads of 4, twice; 2 x 2 heads of 4, three times; one of 576.
    EXPECT_EQ(layout.bytes(), 16u * 2 * (2 * 8 * 4 + 3 * 2 * 2 * 4 + 576));
}

TEST(Layout, HeadsArePaddedToWholeBlocks) {
    MemoryOptions options = sized(8, 2);
    options.keys = DType::q8_0;
    options.values = DType::f16;
    Driver driver(options, attention_specs({{.n_kv_heads = 3, .key_dim = 48, .value_dim = 48}}));
    const StorageInfo& keys = driver.memory->layout().at({0, 0, 0});
    EXPECT_EQ(keys.head_dim, 48);
    EXPECT_EQ(keys.head_elements, 64);
    EXPECT_EQ(keys.row_bytes, 3u * 2 * 34);
    EXPECT_EQ(keys.n_rows, 16u);
    const StorageInfo& values = driver.memory->layout().at({0, 0, 1});
    EXPECT_EQ(values.head_elements, 48);
    EXPECT_EQ(values.row_bytes, 3u * 48 * 2);
}

TEST(MakeMemory, InvalidOptionsThrowWithTheReason) {
    const auto specs = attention_specs({full_layer()});
    MemoryOptions options = sized(8, 2, /*streams=*/true);
    options.n_cells = 17;
    EXPECT_EQ(message_of<InvalidArgument>([&] { make_memory(specs, options); }),
              "kv_cells is 17, but with kv=\"streams\" each of 2 sequences has n_ctx = 8 cells, "
              "together 16");
    options = sized(8, 2);
    options.keys = DType::q4_k;
    EXPECT_EQ(message_of<InvalidArgument>([&] { make_memory(specs, options); }),
              "keys cannot be cached as Q4_K");
    EXPECT_THROW(make_memory(specs, sized(0, 1)), InvalidArgument);
    EXPECT_THROW(make_memory(specs, sized(8, 0)), InvalidArgument);
    EXPECT_THROW(make_memory(specs, sized(INT32_MAX, 2)), InvalidArgument);
}

}  // namespace
}  // namespace plait
