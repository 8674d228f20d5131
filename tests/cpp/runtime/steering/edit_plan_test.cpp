#include "runtime/steering/edit_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace plait {
namespace {

constexpr size_t kWidth = 4;

std::shared_ptr<ValueEdit> edit_of(RowSelection selection, size_t n_rows = 1) {
    auto edit = std::make_shared<ValueEdit>();
    edit->selection = std::move(selection);
    edit->rows.assign(n_rows * kWidth, static_cast<float>(n_rows));
    edit->width = kWidth;
    edit->by_position = n_rows > 1;
    return edit;
}

RowSelection of(std::vector<SequenceId> sequences, RowSelection::Range positions = {}) {
    return {std::move(sequences), positions};
}

ValueName layer(int16_t number) { return {Role::l_out, number}; }

TEST(RowSelection, FindsTheIndexOfAPosition) {
    const std::vector<Position> listed = {7, 2, 5};
    const RowSelection some({{3, 1, 3}}, listed);
    const std::vector<SequenceId> one = {1}, two = {0, 3}, none = {2};
    EXPECT_EQ(some.find(one, 7), 0u);
    EXPECT_EQ(some.find(two, 5), 2u);
    EXPECT_EQ(some.find(none, 5), std::nullopt);
    EXPECT_EQ(some.find(one, 6), std::nullopt);
    EXPECT_EQ(some.n_positions(), 3u);
    const RowSelection range(std::nullopt, RowSelection::Range{4, 11, 3});
    EXPECT_EQ(range.find(none, 10), 2u);
    EXPECT_EQ(range.find(none, 11), std::nullopt);
    EXPECT_EQ(range.find(none, 5), std::nullopt);
    EXPECT_EQ(range.n_positions(), 3u);
    EXPECT_EQ(RowSelection().n_positions(), std::nullopt);
    EXPECT_EQ(RowSelection().find(none, 0), 0u);
    EXPECT_TRUE(some.may_overlap(range) == range.may_overlap(some));
    EXPECT_TRUE(some.may_overlap(range));  // position 7
    EXPECT_FALSE(some.may_overlap(of({2})));
    EXPECT_FALSE(some.may_overlap(RowSelection(std::nullopt, RowSelection::Range{8, 20, 1})));
    EXPECT_THROW(RowSelection(std::nullopt, std::vector<Position>{1, 1}), InvalidArgument);
}

TEST(EditPlan, EditsOfDifferentTokensShareAPoint) {
    const auto set = [](std::vector<NamedEdit> edits) { return EditPlan(std::move(edits)).set(); };
    const EditSet apart = set({{layer(1), edit_of(of({0}))}, {layer(1), edit_of(of({1}))}});
    EXPECT_EQ(apart.points, (std::vector<EditPoint>{{layer(1), false, 0}}));
    // Neither the sequences and positions nor the number of edits matter.
    EXPECT_EQ(apart, set({{layer(1), edit_of(of({2}, {0, 9, 1}), 9)}}));
    // Values are sorted by name; edits that may meet have points of their own, in their order.
    const EditSet all = set({{layer(2), edit_of({})},
                             {layer(1), edit_of(of({0}))},
                             {layer(1), edit_of(of({0, 1}))},
                             {layer(1), edit_of(of({1}))}});
    const std::vector<EditPoint> want = {
        {layer(1), false, 0}, {layer(1), false, 1}, {layer(1), false, 2}, {layer(2), false, 3}};
    EXPECT_EQ(all.points, want);
}

TEST(EditPlan, PicksTheRowOfAToken) {
    const EditPlan plan({{layer(0), edit_of(of({0}))}, {layer(0), edit_of(of({1}, {2, 5, 1}), 3)}});
    std::vector<float> rows(plan.n_elements());
    plan.copy_rows(rows);
    const auto pick = [&](std::vector<SequenceId> sequences, Position position) {
        int32_t picks[2];
        plan.pick(0, sequences, position, picks);
        return picks[0];
    };
    EXPECT_EQ(pick({2}, 0), -1);
    EXPECT_EQ(pick({1}, 1), -1);
    EXPECT_EQ(rows[static_cast<size_t>(pick({0}, 9))], 1.0f);
    EXPECT_EQ(rows[static_cast<size_t>(pick({1}, 2))], 3.0f);
    EXPECT_EQ(pick({1}, 4), pick({1}, 2) + static_cast<int32_t>(2 * kWidth));
    EXPECT_EQ(pick({0, 1}, 9), pick({0}, 9));
    EXPECT_THROW(pick({0, 1}, 3), InvalidArgument);
}

}  // namespace
}  // namespace plait
