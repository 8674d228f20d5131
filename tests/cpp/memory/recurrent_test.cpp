#include "memory/recurrent.h"

#include <gmock/gmock.h>

#include <chrono>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

MemorySpecs states() { return {{RecurrentSpec{{4, 6}}}}; }

int state_of(const Driver& driver, SequenceId s, uint8_t group = 0) {
    const auto tokens = driver.tokens(s, group);
    return tokens.empty() ? 0 : tokens[0];
}

int folded(std::initializer_list<int> tokens) {
    int state = 0;
    for (const int token : tokens) state = fold(state, token);
    return state;
}

TEST(Recurrent, AnEmptySequenceReadsTheZeroRowAndWritesItsOwn) {  // # S4-15
    Driver driver(sized(8, 2), states());
    EXPECT_EQ(kind_of(driver), "recurrent");
    EXPECT_EQ(driver.groups()[0].n_rows, 3u * 2 + 1);
    driver.place(Driver::batch_of(1, 3, 7));
    const GroupView view = driver.memory->view(0, 0);
    EXPECT_THAT(view.read_rows, ElementsAre(0));
    EXPECT_NE(view.write_rows[0], 0);
    driver.memory->rollback();
    driver.feed(1, 3, 7);
    EXPECT_EQ(state_of(driver, 1), folded({7, 8, 9}));
    EXPECT_EQ(driver.memory->positions(1)->min, 0);
    EXPECT_EQ(driver.memory->positions(1)->max, 2);
    EXPECT_EQ(driver.memory->n_used(), 1);
    EXPECT_EQ(driver.memory->n_cells(), 2);
}

TEST(Recurrent, LaterMicrobatchesUpdateTheNewRow) {  // # S1-22 # S1-49 # S1-25
    Driver driver(sized(8, 1), states());
    driver.feed(0, 1);
    const int32_t committed = driver.memory->rows_of(0, 0)[0];
    ASSERT_EQ(driver.place(Driver::batch_of(0, 10, 1)).size(), 3u);
    const int32_t fresh = driver.memory->view(0, 0).write_rows[0];
    EXPECT_NE(fresh, committed);
    EXPECT_THAT(driver.memory->view(0, 0).read_rows, ElementsAre(committed));
    for (size_t microbatch = 1; microbatch < 3; ++microbatch) {
        EXPECT_THAT(driver.memory->view(0, microbatch).read_rows, ElementsAre(fresh));
        EXPECT_THAT(driver.memory->view(0, microbatch).write_rows, ElementsAre(fresh));
    }
    driver.memory->commit();
    EXPECT_THAT(driver.memory->rows_of(0, 0), ElementsAre(fresh));
}

TEST(Recurrent, AFailedCallLeavesTheOldState) {  // # S4-08
    Driver driver(sized(8, 2), states());
    driver.feed(0, 3);
    const auto microbatches = driver.place(Driver::batch_of(0, 10, 50));
    driver.write(microbatches[0], 0);
    driver.write(microbatches[1], 1);
    driver.memory->rollback();
    EXPECT_EQ(state_of(driver, 0), folded({0, 1, 2}));
    EXPECT_EQ(driver.memory->positions(0)->max, 2);
    EXPECT_EQ(driver.memory->n_used(), 1);
}

TEST(Recurrent, MicrobatchesMayHaveSequencesOfAnyLengths) {
    Driver driver(sized(8, 3), states());
    Batch batch;
    for (const SequenceId s : {2, 0, 0, 1, 0, 2, 0}) batch.add(10 + s, {}, std::span(&s, 1), false);
    driver.decode(batch);
    EXPECT_EQ(state_of(driver, 0), folded({10, 10, 10, 10}));
    EXPECT_EQ(state_of(driver, 1), folded({11}));
    EXPECT_EQ(state_of(driver, 2), folded({12, 12}));
}

TEST(Recurrent, ACopySharesTheStateUntilOneSequenceContinues) {
    Driver driver(sized(8, 3), states());
    driver.feed(0, 3);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.memory->copy(0, 2, {0, 3}, driver.moves);
    EXPECT_THAT(driver.moves, IsEmpty());
    EXPECT_EQ(driver.memory->n_used(), 1);
    EXPECT_THAT(driver.memory->cells()[0].sequences, ElementsAre(0, 1, 2));
    driver.feed(0, 1, 30);
    driver.feed(2, 1, 40);
    EXPECT_EQ(state_of(driver, 0), folded({0, 1, 2, 30}));
    EXPECT_EQ(state_of(driver, 1), folded({0, 1, 2}));
    EXPECT_EQ(state_of(driver, 2), folded({0, 1, 2, 40}));
    EXPECT_EQ(driver.memory->rewind_point(0, 4), (RewindPoint{4, 0}));
    EXPECT_EQ(driver.memory->rewind_point(0, 3), (RewindPoint{3, 1})) << "a fork is a checkpoint";
    EXPECT_EQ(driver.memory->rewind_point(0, 2), (RewindPoint{0, 0}));
}

TEST(Recurrent, ARewindAmongManyForksIsFast) {
    constexpr int32_t kForks = 2000;
    Driver driver(sized(kForks + 8, kForks + 1), states());
    for (SequenceId fork = 1; fork <= kForks; ++fork) {
        driver.feed(0, 1);
        driver.memory->copy(0, fork, {}, driver.moves);
    }
    driver.feed(0, 1);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(driver.memory->rewind_point(0, 1000), (RewindPoint{1000, 1000}));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(Recurrent, AStateCannotBeSplit) {  // # S4-33
    Driver driver(sized(8, 2), states());
    driver.feed(0, 5);
    const auto before = driver.memory->cells();
    EXPECT_FALSE(driver.memory->can_partial_remove());
    EXPECT_FALSE(driver.memory->remove(0, {2, INT32_MAX}));
    EXPECT_FALSE(driver.memory->remove(0, {0, 4}));
    EXPECT_EQ(
        message_of<UnsupportedError>([&] {
            driver.memory->copy(0, 1, {0, 4}, driver.moves);
        }),
        "positions [0, 4) of sequence 0 cannot be copied: a recurrent state can only be copied "
        "as a whole, here positions [0, 5)");
    EXPECT_TRUE(driver.memory->remove(0, {5, 9}));
    EXPECT_TRUE(driver.memory->remove(0, {2, 2}));
    EXPECT_TRUE(driver.memory->remove(1, {}));
    EXPECT_EQ(driver.memory->cells(), before);
    EXPECT_TRUE(driver.memory->remove(0, {0, 5}));
    EXPECT_EQ(driver.memory->n_used(), 0);
}

TEST(Recurrent, ShiftsChangePositionsOnly) {
    Driver driver(sized(8, 2), states());
    driver.feed(0, 4);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.memory->add(1, {}, 10, driver.moves);
    driver.memory->divide(0, {}, 3, driver.moves);
    EXPECT_FALSE(driver.memory->has_shifts());
    EXPECT_EQ(driver.memory->positions(1)->max, 13);
    EXPECT_EQ(driver.memory->positions(0)->max, 1);
    EXPECT_EQ(driver.memory->rows_of(0, 0), driver.memory->rows_of(0, 1)) << "the state is shared";
    EXPECT_EQ(driver.memory->n_used(), std::ssize(driver.memory->cells()));
    EXPECT_EQ(driver.memory->cells().size(), 2u) << "at two positions";
    EXPECT_THROW(driver.memory->add(0, {}, -1, driver.moves), InvalidArgument);
}

TEST(Recurrent, ATokenOfSeveralSequencesIsComputedOnce) {
    Driver driver(sized(8, 3), states());
    Batch batch;
    const SequenceId all[] = {0, 1, 2};
    const SequenceId pair[] = {1, 2};
    const SequenceId two[] = {2};
    batch.add(5, {}, all, false);
    batch.add(6, {}, all, false);
    batch.add(7, {}, pair, false);
    batch.add(8, {}, two, false);
    batch.add(9, {}, std::span(all).first(1), false);
    const auto microbatches = driver.place(batch);
    ASSERT_EQ(microbatches.size(), 3u) << "coupling changes only between microbatches";
    driver.memory->rollback();
    driver.decode(batch);
    EXPECT_EQ(state_of(driver, 0), folded({5, 6, 9}));
    EXPECT_EQ(state_of(driver, 1), folded({5, 6, 7}));
    EXPECT_EQ(state_of(driver, 2), folded({5, 6, 7, 8}));
    driver.memory->keep(1);
    driver.memory->copy(1, 0, {}, driver.moves);
    Batch next;
    next.add(20, {}, std::span(all).first(2), false);
    driver.decode(next);
    EXPECT_EQ(driver.memory->n_used(), 1) << "one new row for both";
}

TEST(Recurrent, TwoRowsPerSequenceSuffice) {
    Driver driver(sized(64, 8), states());
    std::vector<SequenceId> all{0, 1, 2, 3, 4, 5, 6, 7};
    for (int round = 0; round < 20; ++round) {
        Batch batch;
        // In one call, all sequences share a token, then pairs share tokens, then none.
        batch.add(1, {}, all, false);
        for (size_t i = 0; i < 8; i += 2) batch.add(2, {}, std::span(all).subspan(i, 2), false);
        for (size_t i = 0; i < 8; ++i)
            batch.add(static_cast<int>(i), {}, std::span(all).subspan(i, 1), false);
        driver.decode(batch);
        EXPECT_EQ(driver.memory->n_used(), 8);
        driver.memory->keep(3);
        for (const SequenceId s : {0, 1, 2, 4, 5, 6, 7})
            driver.memory->copy(3, s, {}, driver.moves);
    }
    EXPECT_EQ(driver.memory->n_used(), 1);
}

TEST(Recurrent, EachStateHasItsOwnSizeAndLayersMayOmitAny) {  // # S1-23 # S1-24 # S1-26
    Driver driver(sized(8, 2), {{RecurrentSpec{{4, 6, 1, 10}}},
                                {},
                                {RecurrentSpec{{0, 6}}},
                                {full_layer(), RecurrentSpec{{3}}}});
    const MemoryLayout& layout = driver.memory->layout();
    EXPECT_EQ(layout.storage.size(), 4u + 1 + 2 + 1);
    EXPECT_EQ(layout.at({0, 0, 3}).head_dim, 10);
    EXPECT_EQ(layout.at({0, 0, 1}).row_bytes, 6u * 4);
    EXPECT_EQ(layout.at({2, 0, 1}).n_rows, 7u);
    EXPECT_THROW(layout.at({2, 0, 0}), InternalError);
    EXPECT_EQ(layout.group_of(0, 0), layout.group_of(2, 0));
    EXPECT_EQ(layout.group_of(3, 1), layout.group_of(0, 0));
    EXPECT_NE(layout.group_of(3, 0), layout.group_of(3, 1));
}

TEST(Recurrent, StreamsMakeNoDifference) {  // # S2-40
    Driver driver(sized(8, 2, /*streams=*/true), states());
    EXPECT_EQ(kind_of(driver), "recurrent");
    EXPECT_EQ(driver.memory->n_streams(), 1);
}

TEST(Recurrent, DefragmentationMovesNothing) {  // # S3-19
    Driver driver(sized(8, 4), states());
    for (const SequenceId s : {0, 1, 2, 3}) driver.feed(s, 2);
    ASSERT_TRUE(driver.memory->remove(1, {}));
    EXPECT_EQ(driver.memory->defragment(8, driver.moves), 0);
    EXPECT_THAT(driver.moves, IsEmpty());
}

TEST(Recurrent, ARepeatedStepAllocatesNothing) {
    Driver driver(sized(8, 4), states());
    Batch batch;
    for (SequenceId s = 0; s < 4; ++s) batch.add(0, {}, std::span(&s, 1), true);
    const auto step = [&] {
        driver.place(batch);
        driver.memory->view(0, 0);
        driver.memory->commit();
    };
    for (int i = 0; i < 4; ++i) step();
    const uint64_t before = n_allocations();
    for (int i = 0; i < 100; ++i) step();
    EXPECT_EQ(n_allocations(), before);
}

TEST(Recurrent, AFailedAllocationChangesNothing) {
    Driver driver(sized(8, 3), states());
    expect_all_or_nothing(driver, [&] { driver.feed(0, 6); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(0, 1, {}, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->add(1, {}, 1, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.feed(1, 6); });
    EXPECT_EQ(driver.memory->positions(1)->max, 12);
}

TEST(Hybrid, EitherAllPartsChangeOrNone) {  // # S4-33
    Driver driver(sized(16, 2), {{full_layer()}, {RecurrentSpec{{4}}}});
    EXPECT_EQ(kind_of(driver), "hybrid");
    driver.feed(0, 6);
    const auto before = rows_of_all(*driver.memory);
    EXPECT_FALSE(driver.memory->remove(0, {4, INT32_MAX}))
        << "keys can be removed, the state cannot";
    EXPECT_THROW(driver.memory->copy(0, 1, {0, 3}, driver.moves), UnsupportedError);
    EXPECT_THROW(driver.feed(0, 11), CacheFull);
    EXPECT_EQ(rows_of_all(*driver.memory), before);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.feed(0, 2, 6);
    EXPECT_EQ(driver.tokens(1).size(), 6u);
    EXPECT_EQ(state_of(driver, 1, 1), folded({0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(driver.memory->rewind_point(0, 7), (RewindPoint{6, 1}));
    expect_all_or_nothing(driver, [&] { driver.memory->refork({6, 1}, 0, driver.moves); });
    EXPECT_EQ(state_of(driver, 0, 1), state_of(driver, 1, 1));
    EXPECT_TRUE(driver.memory->remove(0, {}));
    EXPECT_EQ(driver.memory->n_used(), 6);
}

TEST(Hybrid, AnyPatternOfLayers) {  // # S1-09
    const StateSpec a = full_layer();
    const StateSpec r = RecurrentSpec{{4}};
    const std::vector<MemorySpecs> patterns = {
        {{a}, {a}, {r}}, {{r}, {a}, {a}}, {{a}, {r}, {a}, {r}}, {{r}, {}, {a}}};
    for (const MemorySpecs& specs : patterns) {
        Driver driver(sized(16, 2), specs);
        EXPECT_EQ(kind_of(driver), "hybrid");
        driver.feed(1, 3, 4);
        for (uint8_t g = 0; g < 2; ++g)
            EXPECT_EQ(driver.tokens(1, g).size(),
                      driver.groups()[g].kind == &RecurrentSpec::kind() ? 1u : 3u);
    }
}

TEST(Hybrid, AFailedAllocationChangesNothing) {
    MemoryOptions options = sized(64, 3, /*streams=*/true);
    options.n_batch = 8;
    Driver driver(options,
                  {{full_layer()}, {RecurrentSpec{{4}}}, {window_layer({WindowKind::sliding, 5})}});
    for (int i = 0; i < 4; ++i) expect_all_or_nothing(driver, [&] { driver.feed(0, 6, 6 * i); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(0, 1, {}, driver.moves); });
    expect_all_or_nothing(driver, [&] { driver.memory->add(1, {}, 7, driver.moves); });
    std::vector<KeyShift> shifts;
    expect_all_or_nothing(driver, [&] { driver.memory->take_shifts(shifts); });
    EXPECT_EQ(shifts.size(), 24u + 4);
    std::vector<StateRows> rows;
    MemoryState state;
    expect_all_or_nothing(driver, [&] { state = driver.memory->describe(1, rows); });
    expect_all_or_nothing(driver, [&] { driver.memory->restore(state, 2, rows); });
    EXPECT_EQ(driver.memory->positions(2)->max, 30);
}

}  // namespace
}  // namespace plait
