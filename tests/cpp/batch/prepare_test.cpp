#include "batch/prepare.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "fake_sequences.h"

namespace plait {
namespace {

using testing::ElementsAre;

// Batch preparation runs without a model, a memory or a decode call.  # S4-40
class Prepare : public testing::Test {
protected:
    Prepare() {
        limits.n_vocab = 100;
        limits.width = 2;
        limits.n_batch = 8;
        limits.n_seq_max = 4;
    }

    void add(std::vector<SequenceId> sequences, std::vector<Position> position = {},
             TokenId token = 1, bool want = false) {
        batch.add(token, position, sequences, want);
    }
    void run() { prepare(batch.view(), limits, past, prepared); }
    std::string error() {
        try {
            run();
        } catch (const BatchError& e) {
            return e.what();
        }
        return "accepted";
    }

    Batch batch;
    BatchLimits limits;
    FakeSequences past;
    PreparedBatch prepared;
};

TEST_F(Prepare, MissingPositionsContinueEachSequence) {  // # S4-31
    past.held[0] = {0, 9};
    past.held[2] = {3, 4};
    for (const SequenceId s : {0, 2, 1, 0, 2, 1}) add({s});
    run();
    EXPECT_THAT(prepared.positions, ElementsAre(10, 5, 0, 11, 6, 1));
    EXPECT_THAT(prepared.touched, ElementsAre(0, 2, 1));
    EXPECT_EQ(prepared.next[0], 12);
}

TEST_F(Prepare, AnEmptySequenceMayStartAnywhere) {
    add({3}, {40});
    add({3});
    run();
    EXPECT_THAT(prepared.positions, ElementsAre(40, 41));
}

TEST_F(Prepare, CountsOutputs) {
    add({0}, {}, 1, true);
    add({0}, {}, 1, false);
    add({0}, {}, 1, true);
    run();
    EXPECT_EQ(prepared.n_outputs, 2u);
}

TEST_F(Prepare, PositionsMustBeConsecutive) {
    past.held[3] = {0, 16};
    add({0});
    add({3}, {19});
    EXPECT_EQ(error(), "decode: sequence 3 expects position 17, got 19 (entry 1)");
    batch.clear();
    add({3}, {16});
    EXPECT_EQ(error(), "decode: sequence 3 expects position 17, got 16 (entry 0)");
    batch.clear();
    add({3}, {17});
    add({3}, {5});
    EXPECT_EQ(error(), "decode: sequence 3 expects position 18, got 5 (entry 1)");
}

TEST_F(Prepare, PositionsOutOfRangeThrow) {
    add({0}, {-2});
    EXPECT_EQ(error(), "decode: position -2 of sequence 0 is outside 0..2147483646 (entry 0)");
    batch.clear();
    add({0}, {INT32_MAX});
    EXPECT_EQ(error(),
              "decode: position 2147483647 of sequence 0 is outside 0..2147483646 (entry 0)");
    batch.clear();
    add({0}, {INT32_MAX - 1});
    EXPECT_EQ(error(), "accepted");
    add({0});
    EXPECT_EQ(error(),
              "decode: position 2147483647 of sequence 0 is outside 0..2147483646 (entry 1)");
}

TEST_F(Prepare, SizesAreChecked) {
    EXPECT_EQ(error(), "decode: the batch is empty");
    for (int i = 0; i < 9; ++i) add({0});
    EXPECT_EQ(error(), "decode: the batch has 9 entries, more than n_batch = 8");
    limits.call = "encode";
    EXPECT_EQ(error(), "encode: the batch has 9 entries, more than n_batch = 8");
}

TEST_F(Prepare, InconsistentViewsThrow) {
    add({0});
    add({1});
    const BatchView good = batch.view();
    const auto refused = [&](auto change) {
        BatchView view = good;
        change(view);
        try {
            prepare(view, limits, past, prepared);
        } catch (const BatchError&) {
            return true;
        }
        return false;
    };
    const float floats[] = {1, 2, 3, 4};
    const int32_t backwards[] = {0, 2, 1};
    const int32_t outside[] = {0, 1, 3};
    const int32_t nothing[] = {0, 0, 2};
    EXPECT_FALSE(refused([](BatchView&) {}));
    EXPECT_TRUE(refused([](BatchView& v) { v.tokens = v.tokens.first(1); }));
    EXPECT_TRUE(refused([](BatchView& v) { v.wants = v.wants.first(1); }));
    EXPECT_TRUE(refused([](BatchView& v) { v.positions = v.positions.first(1); }));
    EXPECT_TRUE(refused([](BatchView& v) { v.sequence_begin = v.sequence_begin.first(2); }));
    EXPECT_TRUE(refused([](BatchView& v) { v.axes = 4; }));
    EXPECT_TRUE(refused([&](BatchView& v) { v.embeddings = floats; }));
    EXPECT_TRUE(refused([&](BatchView& v) { v.sequence_begin = backwards; }));
    EXPECT_TRUE(refused([&](BatchView& v) { v.sequence_begin = outside; }));
    EXPECT_TRUE(refused([&](BatchView& v) { v.sequence_begin = nothing; }));
    EXPECT_FALSE(refused([&](BatchView& v) {
        v.tokens = {};
        v.embeddings = floats;
        v.width = 2;
    }));
}

TEST_F(Prepare, TokensOutsideTheVocabularyThrow) {
    add({0}, {}, 99);
    EXPECT_EQ(error(), "accepted");
    add({0}, {}, 100);
    EXPECT_EQ(error(), "decode: token 100 is outside 0..99 (entry 1)");
    batch.clear();
    add({0}, {}, -1);
    EXPECT_EQ(error(), "decode: token -1 is outside 0..99 (entry 0)");
}

TEST_F(Prepare, EmbeddingsMustHaveTheWidthOfTheModel) {
    const float row[] = {1.0f, 2.0f, 3.0f};
    const SequenceId zero[] = {0};
    batch.add_embedding(row, {}, zero, false);
    EXPECT_EQ(error(), "decode: embeddings have 3 elements each, the model expects 2");
}

TEST_F(Prepare, SequenceIdsAreChecked) {
    add({4});
    EXPECT_EQ(error(), "decode: sequence id 4 is outside 0..3 (entry 0; n_seq_max = 4)");
    batch.clear();
    add({-1});
    EXPECT_EQ(error(), "decode: sequence id -1 is outside 0..3 (entry 0; n_seq_max = 4)");
    batch.clear();
    add({2, 1, 2});
    EXPECT_EQ(error(), "decode: entry 0 has sequence id 2 twice");
}

TEST_F(Prepare, ATokenOfSeveralSequencesNeedsEqualContents) {
    past.held[0] = past.held[1] = {0, 4};
    add({1, 0});
    add({0, 1});
    run();
    EXPECT_THAT(prepared.positions, ElementsAre(5, 6));
    EXPECT_THAT(prepared.sequences_of(0), ElementsAre(0, 1));

    batch.clear();
    add({1, 2});
    EXPECT_EQ(error(),
              "decode: entry 0 belongs to sequences 1, 2, which do not hold the same "
              "cells; copy one to the others first");
}

TEST_F(Prepare, SequencesThatDivergedInTheBatchCannotShareATokenAgain) {
    add({0, 1, 2});
    add({1, 2});
    add({0});
    add({1, 2});
    EXPECT_EQ(error(), "accepted");
    add({0, 1});
    EXPECT_EQ(error(),
              "decode: entry 4 belongs to sequences 0, 1, which do not hold the same "
              "cells; copy one to the others first");
    batch.clear();
    add({0});
    add({0, 1});
    EXPECT_EQ(error(),
              "decode: entry 1 belongs to sequences 0, 1, which do not hold the same "
              "cells; copy one to the others first");
}

TEST_F(Prepare, ATokenOfSeveralSequencesThrowsWithStreams) {  // # S2-27
    limits.coupled = false;
    add({3});
    add({1, 0});
    EXPECT_EQ(error(),
              "decode: entry 1 belongs to sequences 0, 1; with kv=\"streams\" a token can "
              "only belong to one sequence");
}

TEST_F(Prepare, AFailedBatchDoesNotAffectTheNext) {
    past.held[0] = {0, 4};
    add({0});
    add({1, 0});
    EXPECT_NE(error(), "accepted");
    batch.clear();
    add({0});
    run();
    EXPECT_THAT(prepared.positions, ElementsAre(5));
    EXPECT_THAT(prepared.touched, ElementsAre(0));
}

class PrepareAxes : public Prepare {
protected:
    PrepareAxes() { limits.axes = 4; }
};

TEST_F(PrepareAxes, TextHasItsPositionOnEveryAxis) {  // S4-25
    past.held[0] = {0, 6};
    add({0});
    add({0}, {8});
    run();
    EXPECT_THAT(prepared.positions, ElementsAre(7, 7, 7, 0, 8, 8, 8, 0));
}

TEST_F(PrepareAxes, PatchesShareTimeAndTextContinuesAfterTheLargestAxis) {  // S4-25
    for (const int y : {0, 1})
        for (const int x : {0, 1, 2}) add({0}, {5, 5 + y, 5 + x, 0});
    add({0});
    run();
    EXPECT_EQ(prepared.position(5), 5);
    EXPECT_THAT(prepared.positions_of(6), ElementsAre(8, 8, 8, 0));
    EXPECT_EQ(prepared.next[0], 9);
}

TEST_F(PrepareAxes, DecreasingPositionsThrow) {
    past.held[0] = {0, 6};
    add({0}, {6, 7, 7, 0});
    EXPECT_EQ(error(), "decode: sequence 0 expects position 7 or later, got 6 (entry 0)");
    batch.clear();
    add({0}, {7, 9, 9, 0});
    add({0}, {7, 9, 8, 0});
    EXPECT_EQ(
        error(),
        "decode: sequence 0 has position (7, 9, 8) after position (7, 9, 9); positions must not "
        "decrease (entry 1)");
    batch.clear();
    add({0}, {7, -1, 9, 0});
    EXPECT_EQ(error(), "decode: position -1 of sequence 0 is outside 0..2147483646 (entry 0)");
}

}  // namespace
}  // namespace plait
