#include "batch/batch.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace plait {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SequenceId kZero[] = {0};

TEST(Batch, KeepsEntriesInTheOrderTheyWereAdded) {
    Batch batch;
    const SequenceId both[] = {3, 1};
    const Position five[] = {5};
    batch.add(10, {}, kZero, false);
    batch.add(11, five, both, true);
    const BatchView view = batch.view();
    EXPECT_EQ(view.size, 2u);
    EXPECT_THAT(view.tokens, ElementsAre(10, 11));
    EXPECT_THAT(view.positions, ElementsAre(kNextPosition, 5));
    EXPECT_THAT(view.sequences_of(0), ElementsAre(0));
    EXPECT_THAT(view.sequences_of(1), ElementsAre(3, 1));
    EXPECT_THAT(view.wants, ElementsAre(0, 1));
    EXPECT_THAT(view.embeddings, IsEmpty());
}

TEST(Batch, OnePositionAmongSeveralAxesIsRepeated) {
    Batch batch;
    const Position text[] = {7};
    const Position patch[] = {8, 9, 10, 11};
    batch.add(1, text, kZero, false);
    batch.add(2, patch, kZero, false);
    batch.add(3, {}, kZero, false);
    EXPECT_EQ(batch.view().axes, 4);
    EXPECT_THAT(batch.view().positions, ElementsAre(7, 7, 7, 0, 8, 9, 10, 11, -1, -1, -1, 0));
}

TEST(Batch, HoldsEitherTokensOrEmbeddings) {
    const float row[] = {1.0f, 2.0f};
    Batch tokens;
    tokens.add(1, {}, kZero, false);
    EXPECT_THROW(tokens.add_embedding(row, {}, kZero, false), BatchError);
    EXPECT_EQ(tokens.size(), 1u);

    Batch embeddings;
    embeddings.add_embedding(row, {}, kZero, true);
    EXPECT_THROW(embeddings.add(1, {}, kZero, false), BatchError);
    EXPECT_EQ(embeddings.view().width, 2);
    EXPECT_THAT(embeddings.view().embeddings, ElementsAre(1.0f, 2.0f));
}

TEST(Batch, AnInvalidEntryChangesNothing) {
    Batch batch;
    const float two[] = {1.0f, 2.0f};
    const float three[] = {1.0f, 2.0f, 3.0f};
    const Position pair[] = {1, 2};
    batch.add_embedding(two, {}, kZero, true);
    EXPECT_THROW(batch.add_embedding(three, {}, kZero, true), BatchError);
    EXPECT_THROW(batch.add_embedding({}, {}, kZero, true), BatchError);
    EXPECT_THROW(batch.add_embedding(two, pair, kZero, true), BatchError);
    EXPECT_THROW(batch.add_embedding(two, {}, {}, true), BatchError);
    const BatchView view = batch.view();
    EXPECT_EQ(view.size, 1u);
    EXPECT_EQ(view.embeddings.size(), 2u);
    EXPECT_EQ(view.positions.size(), 1u);
    EXPECT_EQ(view.sequence_begin.size(), 2u);
}

TEST(Batch, AClearedBatchAcceptsTheOtherKindOfInput) {
    Batch batch;
    const Position patch[] = {8, 9, 10, 11};
    batch.add(1, patch, kZero, true);
    batch.clear();
    EXPECT_EQ(batch.size(), 0u);
    const float row[] = {1.0f};
    batch.add_embedding(row, {}, kZero, true);
    EXPECT_EQ(batch.view().axes, 1);
    EXPECT_EQ(batch.size(), 1u);
}

}  // namespace
}  // namespace plait
