// Descriptions of a memory are canonical and portable, and are checked before anything changes.
#include "memory/state.h"

#include <gmock/gmock.h>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Saved {
    MemoryState state;
    std::map<std::pair<uint8_t, int32_t>, int> bytes;  // by group and item
};

Saved save(const Driver& driver, std::optional<SequenceId> sequence = {}) {
    Saved saved;
    std::vector<StateRows> rows;
    saved.state = driver.memory->describe(sequence, rows);
    for (const StateRows& group : rows)
        for (size_t i = 0; i < group.items.size(); ++i)
            saved.bytes[{group.group, group.items[i]}] =
                driver.keys[group.group][static_cast<size_t>(group.rows[i])];
    return saved;
}

void load(Driver& driver, const Saved& saved, std::optional<SequenceId> to = {}) {
    std::vector<StateRows> rows;
    driver.memory->restore(saved.state, to, rows);
    for (const StateRows& group : rows)
        for (size_t i = 0; i < group.items.size(); ++i)
            driver.keys[group.group][static_cast<size_t>(group.rows[i])] =
                saved.bytes.at({group.group, group.items[i]});
}

TEST(State, EqualContentsHaveEqualDescriptions) {  // # S4-10
    Driver plain(sized(32, 3));
    plain.feed(1, 10);
    plain.memory->copy(1, 2, {0, 6}, plain.moves);
    Driver edited(sized(48, 4));
    edited.feed(0, 7, 70);
    edited.feed(1, 6);
    edited.feed(3, 5, 90);
    edited.memory->copy(1, 2, {}, edited.moves);
    edited.feed(1, 4, 6);
    ASSERT_TRUE(edited.memory->remove(0, {}));
    ASSERT_TRUE(edited.memory->remove(3, {}));
    EXPECT_EQ(save(edited).state, save(plain).state);
    EXPECT_EQ(save(edited).bytes, save(plain).bytes);
    EXPECT_EQ(save(edited).state.parts[0].n_items, 10) << "shared tokens are listed once";
    EXPECT_THAT(save(edited).state.sequences, ElementsAre(1, 2));
}

TEST(State, ASequenceCanBeRestoredToAnyId) {
    Driver driver(sized(16, 3));
    driver.feed(0, 5, 50);
    driver.feed(2, 3, 70);
    driver.memory->add(2, {}, 4, driver.moves);
    driver.apply_shifts();
    const Saved saved = save(driver, 2);
    load(driver, saved, 1);
    EXPECT_THAT(driver.tokens(1), ElementsAre(70, 71, 72));
    EXPECT_THAT(driver.positions(1), ElementsAre(4, 5, 6));
    EXPECT_NE(driver.memory->rows_of(0, 1), driver.memory->rows_of(0, 2));
    load(driver, saved, 0);
    EXPECT_THAT(driver.tokens(0), ElementsAre(70, 71, 72));
    driver.feed(2, 1);
    load(driver, saved);
    EXPECT_THAT(driver.tokens(2), ElementsAre(70, 71, 72));
    EXPECT_EQ(driver.memory->n_used(), 9);
}

TEST(State, UnifiedAndStreamsStatesAreInterchangeable) {
    Driver unified(sized(16, 3));
    unified.feed(0, 6, 10);
    unified.memory->copy(0, 1, {}, unified.moves);
    unified.feed(1, 2, 30);
    Driver streams(sized(12, 4, /*streams=*/true));
    load(streams, save(unified));
    for (const SequenceId s : {0, 1}) {
        EXPECT_EQ(streams.tokens(s), unified.tokens(s));
        EXPECT_EQ(streams.positions(s), unified.positions(s));
    }
    EXPECT_EQ(streams.memory->n_used(), 14);
    Driver back(sized(16, 2));
    load(back, save(streams));
    EXPECT_EQ(back.tokens(1), unified.tokens(1));
    EXPECT_EQ(save(back).state, save(streams).state);
}

TEST(State, EmptyAndFullCachesAreRestored) {
    MemoryOptions options = sized(8, 1);
    Driver driver(options);
    const Saved empty = save(driver);
    driver.feed(0, 8);
    const Saved full = save(driver);
    load(driver, full);
    EXPECT_EQ(driver.tokens(0).size(), 8u) << "the replaced contents are released first";
    load(driver, save(driver, 0), 0);
    EXPECT_EQ(driver.tokens(0).size(), 8u);
    load(driver, empty);
    EXPECT_EQ(driver.memory->n_used(), 0);
    EXPECT_THAT(empty.state.sequences, IsEmpty());
    driver.feed(0, 8);
}

TEST(State, AFragmentedCacheCanRestoreAnyStateThatFits) {
    MemoryOptions options = sized(32, 2);
    options.n_cells = 32;
    Driver driver(options);
    driver.feed(1, 10, 100);
    const Saved saved = save(driver, 1);
    ASSERT_TRUE(driver.memory->remove(1, {}));
    driver.feed(0, 32);
    for (Position p = 0; p < 30; p += 3) ASSERT_TRUE(driver.memory->remove(0, {p, p + 1}));
    const auto others = driver.tokens(0);
    load(driver, saved, 1);
    EXPECT_EQ(driver.tokens(1).size(), 10u);
    EXPECT_EQ(driver.tokens(1).front(), 100);
    EXPECT_EQ(driver.tokens(0), others);
}

TEST(State, AStateThatDoesNotFitChangesNothing) {
    MemoryOptions options = sized(16, 2);
    Driver large(options);
    large.feed(0, 12);
    const Saved saved = save(large, 0);
    options.n_cells = 20;
    Driver small(options);
    small.feed(1, 10);
    const auto before = small.memory->cells();
    EXPECT_EQ(message_of<CacheFull>([&] { load(small, saved, 0); }),
              "the state needs 12 cells, 10 of 20 are free");
    EXPECT_EQ(small.memory->cells(), before);
    Driver shorter(sized(8, 2));
    EXPECT_THROW(load(shorter, saved, 0), CacheFull);
    Driver fewer(sized(16, 1));
    Driver more(sized(16, 2));
    more.feed(1, 2);
    EXPECT_THROW(load(fewer, save(more)), StateError);
}

TEST(State, FreedPositionsAreRestored) {
    MemoryOptions options = sized(64, 2);
    options.n_batch = 8;
    const auto specs = attention_specs({full_layer(), window_layer({WindowKind::sliding, 4})});
    Driver driver(options, specs);
    for (int i = 0; i < 3; ++i) driver.feed(0, 8, 8 * i);
    driver.memory->copy(0, 1, {}, driver.moves);
    driver.feed(0, 5, 100);
    const Saved saved = save(driver);
    Driver other(options, specs);
    load(other, saved);
    for (const uint8_t g : {0, 1})
        for (const SequenceId s : {0, 1}) EXPECT_EQ(other.tokens(s, g), driver.tokens(s, g));
    EXPECT_EQ(save(other).state, saved.state);
    EXPECT_FALSE(other.memory->remove(0, {20, INT32_MAX})) << "freed positions are restored";
    MemoryOptions all = options;
    all.swa_full = true;
    Driver kept(all, specs);
    EXPECT_THROW(load(kept, saved), StateError);
}

TEST(State, StatesAndEncoderOutputsStayShared) {
    Driver hybrid(sized(16, 3), {{full_layer()}, {RecurrentSpec{{4}}}});
    hybrid.feed(0, 5);
    hybrid.memory->copy(0, 2, {}, hybrid.moves);
    Driver other(sized(16, 3), {{full_layer()}, {RecurrentSpec{{4}}}});
    load(other, save(hybrid));
    EXPECT_EQ(other.memory->rows_of(1, 0), other.memory->rows_of(1, 2));
    EXPECT_EQ(other.tokens(2, 1), hybrid.tokens(2, 1));
    EXPECT_EQ(other.memory->positions(2)->max, 4);

    Driver cross(sized(16, 3), {{full_layer(), CrossSpec{1, 4, 4}}});
    cross.encode(0, 3, 100);
    cross.encode(1, 4, 200);
    cross.feed(1, 2);
    cross.memory->copy(0, 2, {}, cross.moves);
    Driver reader(sized(16, 3), {{full_layer(), CrossSpec{1, 4, 4}}});
    load(reader, save(cross));
    EXPECT_EQ(reader.tokens(2, 1), cross.tokens(0, 1));
    EXPECT_EQ(reader.memory->rows_of(1, 0), reader.memory->rows_of(1, 2));
    EXPECT_EQ(save(reader).state, save(cross).state);
    reader.feed(2, 1);
}

using Damage = std::function<void(MemoryState&)>;

// A description is either restored completely or rejected.
void expect_refused(Driver& driver, const std::vector<Damage>& damages) {
    const Saved saved = save(driver);
    const auto rows = rows_of_all(*driver.memory);
    for (size_t i = 0; i < damages.size(); ++i) {
        Saved damaged = saved;
        damages[i](damaged.state);
        ASSERT_FALSE(damaged.state == saved.state) << i;
        EXPECT_THROW(load(driver, damaged), StateError) << i;
        EXPECT_EQ(rows_of_all(*driver.memory), rows) << i;
        EXPECT_EQ(save(driver).state, saved.state) << i;
    }
}

TEST(State, AnInconsistentDescriptionChangesNothing) {
    const MemorySpecs specs = {{full_layer(), CrossSpec{1, 4, 4}},
                               {window_layer({WindowKind::sliding, 4})}};
    MemoryOptions options = sized(32, 3);
    options.n_batch = 8;
    Driver driver(options, specs);
    driver.encode(0, 3);
    driver.encode(1, 2);
    driver.feed(0, 8);
    driver.feed(1, 8, 50);
    driver.memory->copy(0, 2, {}, driver.moves);
    driver.feed(0, 3, 90);
    ASSERT_EQ(save(driver).state.parts.size(), 3u);
    expect_refused(
        driver,
        {
            [](MemoryState& s) { s.parts.pop_back(); },
            [](MemoryState& s) {
                s.sequences = {0, 2, 1};
            },
            [](MemoryState& s) {
                s.sequences = {0, 1, 3};
            },
            [](MemoryState& s) {
                s.sequences = {-1, 1, 2};
            },
            [](MemoryState& s) {
                s.sequences = {0, 1};
            },
            [](MemoryState& s) { s.whole = false; },
            [](MemoryState& s) { s.parts[0].kind = RecurrentSpec::kind().code; },
            [](MemoryState& s) { s.parts[0].axes = 4; },
            [](MemoryState& s) { s.parts[1].window.tokens = 5; },
            [](MemoryState& s) { s.parts[0].n_items = -1; },
            [](MemoryState& s) { s.parts[0].n_items += 1; },
            [](MemoryState& s) { s.parts[0].n_items = INT32_MAX; },
            [](MemoryState& s) { s.parts[0].positions.pop_back(); },
            [](MemoryState& s) { s.parts[0].ordinals.push_back(3); },
            [](MemoryState& s) { s.parts[0].ordinals[2] = -3; },
            [](MemoryState& s) { s.parts[0].ordinals.back() = INT32_MAX - 1; },
            [](MemoryState& s) { s.parts[0].positions[2] = -1; },
            [](MemoryState& s) { s.parts[0].positions[2] = INT32_MAX; },
            [](MemoryState& s) { std::swap(s.parts[0].positions[2], s.parts[0].positions[3]); },
            [](MemoryState& s) { s.parts[0].sequences[0].items[2] = 700; },
            [](MemoryState& s) { s.parts[0].sequences[0].items[2] = -1; },
            [](MemoryState& s) { s.parts[0].sequences[0].items[2] = 1; },
            [](MemoryState& s) { s.parts[0].sequences[2].items.back() = 1 << 30; },
            [](MemoryState& s) { s.parts[0].sequences[0].items.pop_back(); },
            [](MemoryState& s) { s.parts[0].sequences.pop_back(); },
            [](MemoryState& s) { s.parts[1].sequences[0].unstored.end = 11; },
            [](MemoryState& s) { s.parts[1].sequences[0].unstored.begin = -4; },
            [](MemoryState& s) { s.parts[1].sequences[1].items.clear(); },
            [](MemoryState& s) {
                s.parts[2].sequences[0].items = {0, 2, 1};
            },
            [](MemoryState& s) {
                s.parts[2].sequences[1].items = {1, 2};
            },
            [](MemoryState& s) {
                s.parts[2].sequences[1].items = {4, 5};
            },
            [](MemoryState& s) { s.parts[0].sequences[0].items.back() = -1; },
            [](MemoryState& s) { s.parts[0].positions.back() = INT32_MAX; },
            [](MemoryState& s) { s.parts[2].n_items = 9; },
            [](MemoryState& s) { s.parts[2].n_items = 4; },
            [](MemoryState& s) { s.parts[2].axes = 1; },
        });
}

TEST(State, AnInconsistentDescriptionOfStatesChangesNothing) {
    Driver driver(sized(16, 3), {{full_layer()}, {RecurrentSpec{{4}}}});
    driver.feed(0, 5);
    driver.feed(1, 4, 50);
    driver.memory->copy(0, 2, {}, driver.moves);
    ASSERT_EQ(save(driver).state.parts.size(), 2u);
    expect_refused(driver, {
                               [](MemoryState& s) { s.parts[1].axes = 1; },
                               [](MemoryState& s) { s.parts[1].n_items = 3; },
                               [](MemoryState& s) { s.parts[1].sequences[0].items.clear(); },
                               [](MemoryState& s) {
                                   s.parts[1].sequences[0].items = {0, 1};
                               },
                               [](MemoryState& s) { s.parts[1].sequences[0].items = {1}; },
                               [](MemoryState& s) { s.parts[1].sequences[1].items = {-1}; },
                               [](MemoryState& s) { s.parts[1].sequences[1].unstored.begin = -1; },
                               [](MemoryState& s) {
                                   s.parts[1].sequences[1].unstored = {4, 2};
                               },
                               [](MemoryState& s) {
                                   s.parts[1].sequences[1].unstored = {0, 7};
                               },
                           });
}

TEST(State, AnInconsistentDescriptionOfNoCacheChangesNothing) {
    Driver driver(sized(16, 2), {{WithinSpec{}}});
    expect_refused(driver, {
                               [](MemoryState& s) { s.parts[0].n_items = 1; },
                               [](MemoryState& s) {
                                   s.sequences = {0};
                                   s.parts[0].sequences = {{.items = {0}}};
                               },
                           });
}

// A transaction keeps the rows that it may restore, also where a state replaces the whole memory.
TEST(State, AStateThatATransactionLeavesNoRoomForChangesNothing) {
    const auto expect_full = [](Driver& driver, std::optional<SequenceId> sequence,
                                std::string_view why) {
        const Saved saved = save(driver, sequence);
        const auto rows = rows_of_all(*driver.memory);
        EXPECT_THAT(message_of<CacheFull>([&] { load(driver, saved, sequence); }), HasSubstr(why));
        EXPECT_EQ(rows_of_all(*driver.memory), rows);
    };
    Driver streams(sized(8, 2, /*streams=*/true));
    streams.feed(1, 5);
    streams.memory->begin_transaction();
    expect_full(streams, {}, "a sequence of the state needs 5 cells, 3 in its stream are free");

    Driver states(sized(16, 1), {{full_layer()}, {RecurrentSpec{{4}}}});
    for (int i = 0; i < 3; ++i) {
        states.feed(0, 1);
        states.memory->begin_transaction();
    }
    expect_full(states, {}, "the state needs 1 recurrent states, 0 of 3 are free");
    expect_full(states, 0, "the state needs 1 recurrent states, 0 of 3 are free");

    MemoryOptions options = sized(8, 1);
    options.n_batch = 8;
    options.n_cells = 8;
    Driver outputs(options, {{full_layer(), CrossSpec{1, 4, 4}}});
    outputs.encode(0, 8);
    outputs.memory->begin_transaction();
    outputs.encode(0, 8);
    outputs.memory->begin_transaction();
    expect_full(outputs, {}, "the state needs 8 encoder cells, 0 of 16 are free");
    expect_full(outputs, 0, "the state needs 8 encoder cells, 0 of 16 are free");
}

TEST(State, AnEncoderOutputLongerThanTheContextChangesNothing) {
    const MemorySpecs specs = {{full_layer(), CrossSpec{1, 4, 4}}};
    Driver longer(sized(16, 1), specs);
    longer.encode(0, 12);
    MemoryOptions options = sized(8, 1);
    Driver shorter(options, specs);
    EXPECT_EQ(message_of<CacheFull>([&] { load(shorter, save(longer)); }),
              "the state has 12 encoder tokens, n_ctx is 8");
}

}  // namespace
}  // namespace plait
