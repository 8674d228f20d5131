#include "memory/cross.h"

#include <gmock/gmock.h>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Indices of the parts of the memory; 0 is attention to the sequence's own tokens.
constexpr uint8_t kCross = 1;
constexpr uint8_t kWithin = 2;

MemorySpecs encoder_decoder() {
    return {{full_layer(), CrossSpec{2, 4, 4}}, {full_layer(), CrossSpec{2, 4, 4}}, {WithinSpec{}}};
}

MemoryOptions options(int32_t n_seq_max, bool streams = false) {
    MemoryOptions options = sized(16, n_seq_max, streams);
    options.n_batch = 8;
    return options;
}

TEST(Cross, EveryDecodeStepReadsTheWholeEncoderOutput) {  // # S4-16
    Driver driver(options(2), encoder_decoder());
    EXPECT_EQ(kind_of(driver), "cross");
    driver.encode(0, 3, 100);
    driver.encode(1, 5, 200);
    Batch batch;
    for (const SequenceId s : {1, 0, 0}) batch.add(s, {}, std::span(&s, 1), false);
    const auto microbatches = driver.place(batch);
    ASSERT_EQ(microbatches.size(), 1u);
    const GroupView view = driver.memory->view(kCross, 0);
    EXPECT_THAT(view.write_rows, IsEmpty());
    EXPECT_THAT(view.first, ElementsAre(0, 0, 0));
    EXPECT_THAT(view.last, ElementsAre(5, 3, 3));
    EXPECT_THAT(view.run_begin, ElementsAre(0, 1, 2));
    EXPECT_EQ(view.runs[0].count, 5);
    EXPECT_EQ(driver.keys[kCross][static_cast<size_t>(view.runs[1].row)], 100);
    driver.memory->rollback();
}

TEST(Cross, EncodingIgnoresDecodedTokens) {
    Driver driver(options(1), encoder_decoder());
    driver.encode(0, 4, 100);
    driver.feed(0, 6);
    driver.encode(0, 2, 300);
    EXPECT_THAT(driver.tokens(0, kCross), ElementsAre(300, 301));
    EXPECT_EQ(driver.memory->positions(0)->max, 5) << "decoded tokens stay";
}

TEST(Cross, AFailedEncodeKeepsTheOldOutput) {  // # S4-08
    Driver driver(options(1), encoder_decoder());
    driver.encode(0, 4, 100);
    const auto microbatches = driver.place(Driver::batch_of(0, 6, 300), StepKind::encode);
    driver.write(microbatches[0], 0);
    EXPECT_THAT(driver.tokens(0, kCross), ElementsAre(100, 101, 102, 103));
    driver.memory->rollback();
    EXPECT_THAT(driver.tokens(0, kCross), ElementsAre(100, 101, 102, 103));
}

TEST(Cross, DecodingWithoutAnEncoderOutputThrows) {
    Driver driver(options(2), encoder_decoder());
    driver.encode(0, 3);
    EXPECT_EQ(message_of<BatchError>([&] { driver.feed(1, 2); }),
              "decode: sequence 1 has no encoder output; encode its input first");
    EXPECT_EQ(driver.memory->n_used(), 0);
    EXPECT_FALSE(driver.memory->positions(1).has_value());
    driver.feed(0, 2);
}

TEST(Cross, CopiesShareTheEncoderOutput) {
    for (const bool streams : {false, true}) {
        Driver driver(options(3, streams), encoder_decoder());
        driver.encode(0, 4, 100);
        driver.feed(0, 3);
        driver.memory->copy(0, 1, {0, 2}, driver.moves);
        driver.carry_out_moves();
        EXPECT_EQ(driver.memory->rows_of(kCross, 1), driver.memory->rows_of(kCross, 0));
        driver.encode(2, 2, 200);
        driver.memory->copy(0, 2, {1, 3}, driver.moves);
        driver.carry_out_moves();
        EXPECT_THAT(driver.tokens(2, kCross), ElementsAre(200, 201))
            << "the sequence has its own output";
        ASSERT_TRUE(driver.memory->remove(0, {}));
        EXPECT_THAT(driver.tokens(1, kCross), ElementsAre(100, 101, 102, 103));
        EXPECT_THAT(driver.tokens(0, kCross), IsEmpty());
    }
}

TEST(Cross, OnlyRemovingTheWholeSequenceFreesTheEncoderOutput) {
    Driver driver(options(2), encoder_decoder());
    driver.encode(0, 4);
    driver.encode(1, 4);
    driver.feed(0, 3);
    ASSERT_TRUE(driver.memory->remove(0, {0, 3}));
    EXPECT_EQ(driver.tokens(0, kCross).size(), 4u);
    ASSERT_TRUE(driver.memory->remove(0, {}));
    EXPECT_THAT(driver.tokens(0, kCross), IsEmpty());
    driver.memory->clear();
    EXPECT_THAT(driver.tokens(1, kCross), IsEmpty());
}

TEST(Cross, ATokenOfSeveralSequencesNeedsASharedEncoderOutput) {
    Driver driver(options(2), encoder_decoder());
    const SequenceId both[] = {0, 1};
    Batch together;
    for (int i = 0; i < 3; ++i) together.add(50 + i, {}, both, false);
    driver.run(together, StepKind::encode);
    EXPECT_EQ(driver.memory->rows_of(kCross, 0), driver.memory->rows_of(kCross, 1));
    driver.decode(together);
    driver.encode(1, 3, 50);
    EXPECT_THROW(driver.decode(together), BatchError);
}

TEST(Cross, AnOutputLongerThanTheContextThrows) {
    MemoryOptions small = options(2);
    small.n_ctx = 4;
    Driver driver(small, encoder_decoder());
    EXPECT_THROW(driver.encode(0, 5), CacheFull);
    driver.encode(0, 4);
    driver.encode(1, 4);
    driver.encode(0, 4);  // the old output is still there when the new one comes
    EXPECT_THAT(driver.tokens(1, kCross), ElementsAre(0, 1, 2, 3));
}

TEST(Cross, TheEncoderSeesItsOwnTokensInBothDirections) {  // # S4-35
    Driver driver(options(2), encoder_decoder());
    Batch batch;
    for (const SequenceId s : {0, 0, 1, 0}) batch.add(s, {}, std::span(&s, 1), false);
    driver.place(batch, StepKind::encode);
    const GroupView view = driver.memory->view(kWithin, 0);
    EXPECT_THAT(view.write_rows, IsEmpty());
    EXPECT_THAT(view.runs, ElementsAre(plait::Run{0, 3, 0, 0}, plait::Run{3, 1, 0, 0}));
    EXPECT_THAT(view.first, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(view.last, ElementsAre(3, 3, 3, 1));
    driver.memory->rollback();
}

TEST(Cross, AFailedAllocationChangesNothing) {
    Driver driver(options(3), encoder_decoder());
    expect_all_or_nothing(driver, [&] { driver.encode(0, 6); });
    expect_all_or_nothing(driver, [&] { driver.encode(0, 5); });
    expect_all_or_nothing(driver, [&] { driver.feed(0, 6); });
    expect_all_or_nothing(driver, [&] { driver.memory->copy(0, 1, {}, driver.moves); });
    EXPECT_EQ(driver.tokens(1, kCross).size(), 5u);
}

MemoryOptions encoder_options(int32_t n_seq_max) {
    MemoryOptions encoder = options(n_seq_max);
    encoder.causal = false;
    return encoder;
}

TEST(None, EncodersHaveNoCells) {  // # S4-17 # S4-22
    Driver driver(encoder_options(4), {{WithinSpec{}}, {WithinSpec{{WindowKind::symmetric, 4}}}});
    EXPECT_EQ(kind_of(driver), "none");
    EXPECT_EQ(driver.memory->layout().bytes(), 0u);
    EXPECT_EQ(driver.memory->n_cells(), 0);
    driver.feed(2, 5);
    EXPECT_FALSE(driver.memory->positions(2).has_value());
    EXPECT_TRUE(driver.memory->remove(2, {}));
    driver.memory->copy(0, 1, {}, driver.moves);
    EXPECT_THAT(driver.moves, IsEmpty());
    EXPECT_THAT(driver.memory->cells(), IsEmpty());
}

TEST(None, ModelsWithoutStateHaveNoGroups) {
    Driver driver(encoder_options(1), {{}, {}});
    EXPECT_EQ(kind_of(driver), "none");
    driver.feed(0, 8);
    EXPECT_EQ(driver.memory->n_used(), 0);
}

TEST(None, AWindowIsAnIntervalOfTheMicrobatch) {
    WithinSpec local{{WindowKind::symmetric, 2}};
    local.needs_key_positions = true;
    Driver driver(encoder_options(2), {{local}});
    Batch batch;
    for (const SequenceId s : {0, 0, 0, 0, 1, 1}) batch.add(s, {}, std::span(&s, 1), true);
    ASSERT_EQ(driver.place(batch).size(), 2u);
    const GroupView first = driver.memory->view(0, 0);
    EXPECT_THAT(first.first, ElementsAre(0, 0, 1, 2));
    EXPECT_THAT(first.last, ElementsAre(2, 3, 4, 4));
    EXPECT_THAT(first.key_positions, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(first.key_begin, ElementsAre(0, 4));
    const GroupView second = driver.memory->view(0, 1);
    EXPECT_THAT(second.last, ElementsAre(2, 2));
    driver.memory->rollback();
}

TEST(None, PartlySharedSequencesThrow) {
    Driver driver(encoder_options(2), {{WithinSpec{}}});
    const SequenceId both[] = {0, 1};
    Batch batch;
    batch.add(0, {}, both, true);
    driver.decode(batch);
    batch.add(1, {}, std::span(both).last(1), true);
    EXPECT_THROW(driver.decode(batch), BatchError);
}

}  // namespace
}  // namespace plait
