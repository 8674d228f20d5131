// Transactions of every kind of memory under random operations. A rollback must restore each row,
// its contents, positions and pending shifts. What is committed must equal what a second memory
// holds, which runs the same operations without transactions.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "all_or_nothing.h"
#include "base/error.h"
#include "driver.h"

namespace plait::transaction_test {
namespace {

constexpr int32_t kSequences = 4;

struct Kind {
    std::string name;
    MemorySpecs specs;
    bool streams = false;
    int64_t cells = 400;
};

using Operation = std::function<void(Driver&)>;

void apply_shifts(Driver& driver) {
    driver.memory->replace_kept_shifts(driver.moves);
    driver.carry_out_moves();
    driver.apply_shifts();
}

// The position that a key is rotated for, and the token; in order of the keys.
using Contents = std::vector<std::vector<std::pair<int, Position>>>;

Contents contents(const Driver& driver) {
    Contents all;
    for (uint8_t g = 0; g < driver.groups().size(); ++g)
        for (SequenceId s = 0; s < kSequences; ++s) {
            auto& list = all.emplace_back();
            for (const int32_t row : driver.memory->rows_of(g, s))
                list.emplace_back(driver.keys[g][static_cast<size_t>(row)],
                                  driver.rotations[g][static_cast<size_t>(row)]);
        }
    return all;
}

// Everything that a rollback restores.
struct Everything {
    std::vector<Cell> cells;
    std::vector<std::vector<int32_t>> rows;
    Contents held;
    int64_t n_used = 0;
    bool has_shifts = false;
    std::vector<RewindPoint> rewind_points;
    std::vector<std::pair<Position, Position>> bounds;

    explicit Everything(const Driver& driver)
        : cells(driver.memory->cells()),
          rows(rows_of_all(*driver.memory)),
          held(contents(driver)),
          n_used(driver.memory->n_used()),
          has_shifts(driver.memory->has_shifts()) {
        for (SequenceId s = 0; s < kSequences; ++s) {
            const auto ends = driver.memory->positions(s).value_or(PositionBounds{-1, -1});
            bounds.emplace_back(ends.min, ends.max);
            for (const Position p : {3, 9, 20})
                rewind_points.push_back(driver.memory->rewind_point(s, p));
        }
    }
    friend bool operator==(const Everything& a, const Everything& b) {
        return a.cells == b.cells && a.rows == b.rows && a.held == b.held && a.n_used == b.n_used &&
               a.has_shifts == b.has_shifts && a.rewind_points == b.rewind_points &&
               a.bounds == b.bounds;
    }
};

// Returns false if the call is refused.
bool attempt(auto&& call) {
    try {
        call();
        return true;
    } catch (const CacheFull&) {
    } catch (const InvalidArgument&) {
    } catch (const UnsupportedError&) {
    } catch (const BatchError&) {
    }
    return false;
}

class Transactions : public testing::TestWithParam<Kind> {
protected:
    static MemoryOptions options_of(const Kind& kind) {
        MemoryOptions options = sized(100, kSequences, kind.streams);
        if (!kind.streams) options.n_cells = kind.cells;
        options.n_batch = 40;
        return options;
    }

    int below(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
    SequenceId any() { return below(kSequences); }

    PositionRange any_range(SequenceId s) {
        const auto held = driver.memory->positions(s);
        if (!held || below(3) == 0) return {};
        const Position begin = below(held->max + 2);
        if (below(2) == 0) return {.begin = begin};
        return {begin, begin + 1 + below(6)};
    }

    bool has(const PartKind& kind) const { return driver.memory->layout().has(kind); }

    std::pair<std::string, Operation> draw() {
        const SequenceId s = any();
        const SequenceId to = any();
        const PositionRange range = any_range(s);
        const int n = 1 + below(6);
        const int token = (next_token += 10);
        switch (below(17)) {
        case 0: return {"remove", [=](Driver& d) { (void)d.memory->remove(s, range); }};
        case 1:
        case 2: return {"copy", [=](Driver& d) { d.memory->copy(s, to, range, d.moves); }};
        case 3: {
            const int delta = below(7) - 2;
            return {"add", [=](Driver& d) { d.memory->add(s, range, delta, d.moves); }};
        }
        case 4: return {"divide", [=](Driver& d) { d.memory->divide(s, range, 2, d.moves); }};
        case 5: return {"shifts", [](Driver& d) { apply_shifts(d); }};
        case 6: return {"own", [=](Driver& d) { own(d, s, token, n); }};
        case 7: return {"restore", [=](Driver& d) { restore(d, s, to); }};
        case 8: return {"rewind", [=](Driver& d) { rewind(d, s, n * 3); }};
        case 9:
            if (below(3) == 0) return {"clear", [](Driver& d) { d.memory->clear(); }};
            return {"keep", [=](Driver& d) { d.memory->keep(s); }};
        case 10:
            return {"defragment", [](Driver& d) {
                        while (d.memory->defragment(5, d.moves) > 0) d.carry_out_moves();
                    }};
        case 11: return {"discard", [=](Driver& d) { d.memory->discard(s, range, d.moves); }};
        default:
            return {"feed", [=](Driver& d) {
                        if (d.memory->layout().has(CrossSpec::kind()) &&
                            (d.memory->rows_of(1, s).empty() || n == 1))
                            d.encode(s, n + 2, token);
                        apply_shifts(d);
                        d.feed(s, n, token);
                    }};
        }
    }

    static void own(Driver& d, SequenceId s, int token, int n) {
        const std::vector<Position> held = d.memory->positions_of(0, s);
        std::vector<int32_t> keys;
        for (int32_t key = token % 3; key < std::ssize(held); key += n) keys.push_back(key);
        d.memory->own(0, s, keys, d.moves);
        d.carry_out_moves();
        for (const int32_t row : keys) d.keys[0][static_cast<size_t>(row)] = token++;
    }

    static void restore(Driver& d, SequenceId s, SequenceId to) {
        apply_shifts(d);
        std::vector<StateRows> from;
        const MemoryState state = d.memory->describe(s, from);
        const auto keys = d.keys;
        const auto rotations = d.rotations;
        std::vector<StateRows> rows;
        d.memory->restore(state, to, rows);
        for (size_t i = 0; i < rows.size(); ++i)
            for (size_t k = 0; k < rows[i].rows.size(); ++k) {
                const auto item = std::ranges::find(from[i].items, rows[i].items[k]);
                const auto source = static_cast<size_t>(
                    from[i].rows[static_cast<size_t>(item - from[i].items.begin())]);
                const uint8_t g = rows[i].group;
                d.keys[g][static_cast<size_t>(rows[i].rows[k])] = keys[g][source];
                d.rotations[g][static_cast<size_t>(rows[i].rows[k])] = rotations[g][source];
            }
    }

    static void rewind(Driver& d, SequenceId s, Position next) {
        const RewindPoint point = d.memory->rewind_point(s, next);
        if (point.from == s) {
            EXPECT_TRUE(d.memory->remove(s, {.begin = point.next}));
        } else {
            d.memory->refork(point, s, d.moves);
        }
    }

    // Runs an operation. Returns false if it was refused and has changed nothing.
    bool run(const Operation& operation) {
        const Everything before(driver);
        if (attempt([&] { operation(driver); })) {
            driver.carry_out_moves();
            return true;
        }
        driver.moves.clear();
        if (!before.has_shifts) {  // otherwise they may have been applied
            EXPECT_EQ(Everything(driver), before);
        }
        return false;
    }

    std::mt19937 random{7};
    int next_token = 0;
    Driver driver{options_of(GetParam()), GetParam().specs};
    Driver twin{options_of(GetParam()), GetParam().specs};
};

TEST_P(Transactions, RestoreEverythingOrEqualTheSameCallsWithoutThem) {
    struct Open {
        Everything before;
        std::vector<Operation> done;
    };
    std::vector<Open> open;
    std::vector<Operation> pending;  // outside of transactions
    int n_rolled_back = 0, n_committed = 0, n_done = 0, n_refused = 0;
    for (int step = 0; step < 6000; ++step) {
        const int choice = below(20);
        if (choice == 0 && open.size() < 3) {
            driver.memory->begin_transaction();
            open.push_back({Everything(driver), {}});
        } else if (choice < 3 && !open.empty()) {
            Open last = std::move(open.back());
            open.pop_back();
            if (below(2) == 0) {
                driver.memory->roll_back_transaction();
                ++n_rolled_back;
                ASSERT_EQ(Everything(driver).rows, last.before.rows) << "step " << step;
                ASSERT_EQ(Everything(driver).held, last.before.held) << "step " << step;
                ASSERT_EQ(Everything(driver), last.before) << "step " << step;
            } else {
                driver.memory->commit_transaction();
                ++n_committed;
                auto& outer = open.empty() ? pending : open.back().done;
                outer.insert(outer.end(), last.done.begin(), last.done.end());
            }
        } else {
            const auto [name, operation] = draw();
            SCOPED_TRACE(name);
            if (run(operation)) {
                (open.empty() ? pending : open.back().done).push_back(operation);
                ++n_done;
            } else {
                ++n_refused;
            }
        }
        if (!open.empty() || pending.empty()) continue;
        for (const Operation& operation : pending) {
            operation(twin);
            twin.carry_out_moves();
        }
        pending.clear();
        // A refused operation may have applied shifts that are still pending in the other memory.
        apply_shifts(driver);
        apply_shifts(twin);
        ASSERT_EQ(contents(driver), contents(twin)) << "step " << step;
        ASSERT_EQ(driver.memory->n_used(), twin.memory->n_used()) << "step " << step;
        ASSERT_EQ(Everything(driver).bounds, Everything(twin).bounds);
    }
    EXPECT_GT(n_rolled_back, 50);
    EXPECT_GT(n_committed, 50);
    EXPECT_GT(n_done, n_refused);
}

TEST_P(Transactions, ChangeNothingIfAnAllocationFails) {
    for (int step = 0; step < 150; ++step) {
        const auto [name, operation] = draw();
        SCOPED_TRACE(name);
        if (step % 20 == 10) {
            for (int n = 0;; ++n) {  // the first failures of a begin, then the begin itself
                const Everything before(driver);
                try {
                    const FailingAllocation failing(n);
                    driver.memory->begin_transaction();
                    break;
                } catch (const std::bad_alloc&) {
                    ASSERT_EQ(Everything(driver), before);
                }
            }
        }
        const size_t depth = driver.memory->n_transactions();
        // Several calls, each of which is all or nothing.
        const bool several = name == "feed" || name == "restore" || name == "own" ||
                             name == "shifts" || name == "defragment";
        if (several) {
            run(operation);
        } else {
            if (!attempt([&] { expect_all_or_nothing(driver, [&] { operation(driver); }); }))
                driver.moves.clear();
        }
        ASSERT_EQ(driver.memory->n_transactions(), depth);
        if (step % 20 == 19) {
            driver.memory->roll_back_transaction();
            ASSERT_EQ(driver.memory->n_transactions(), depth - 1);
        }
    }
}

MemorySpecs with(MemorySpecs specs, StateSpec more) {
    specs.push_back({std::move(more)});
    return specs;
}

const RecurrentSpec kStates{.elements = {4}};
const CrossSpec kCross{.n_kv_heads = 1, .key_dim = 4, .value_dim = 4};
const Window kWindow{WindowKind::sliding, 6};

MemorySpecs rotated() { return attention_specs({full_layer(), full_layer()}); }
MemorySpecs windows() { return attention_specs({full_layer(), window_layer(kWindow)}); }

INSTANTIATE_TEST_SUITE_P(
    Kinds, Transactions,
    testing::Values(Kind{"Unified", rotated()}, Kind{"ShortOfCells", rotated(), false, 60},
                    Kind{"Streams", rotated(), true}, Kind{"Sliding", windows()},
                    Kind{"SlidingStreams", windows(), true},
                    Kind{"OnlyWindows", attention_specs({window_layer(kWindow)})},
                    Kind{"Recurrent", {{kStates}}}, Kind{"Hybrid", with(rotated(), kStates)},
                    Kind{"HybridStreams", with(windows(), kStates), true},
                    Kind{"Cross", with(attention_specs({full_layer()}), kCross)}),
    [](const auto& of) { return of.param.name; });

TEST(Transaction, KeepsRowsAndCopiesOnlyThoseThatChange) {
    Driver driver(sized(64, 2));
    driver.feed(0, 10);
    driver.memory->begin_transaction();
    driver.feed(0, 3, 50);
    EXPECT_TRUE(driver.memory->remove(0, {.begin = 5, .end = 7}));
    EXPECT_EQ(driver.memory->n_used(), 13);
    driver.memory->add(0, {.begin = 11}, 4, driver.moves);  // tokens of the transaction
    EXPECT_TRUE(driver.moves.empty());
    driver.memory->add(0, {.begin = 8, .end = 10}, 1, driver.moves);
    EXPECT_EQ(driver.moves.size(), 1u);
    EXPECT_EQ(driver.moves[0].n, 2);
    driver.carry_out_moves();
    EXPECT_EQ(driver.memory->n_used(), 15);
    driver.memory->commit_transaction();
    EXPECT_EQ(driver.memory->n_used(), 11);
}

TEST(Transaction, BeginningAndEndingAllocateNothing) {
    Driver driver(sized(512, 3));
    for (SequenceId s = 0; s < 3; ++s) driver.feed(s, 5);
    const auto both = [&] {
        driver.memory->begin_transaction();
        driver.memory->commit_transaction();
        driver.memory->begin_transaction();
        driver.memory->roll_back_transaction();
    };
    both();
    const uint64_t before = n_allocations();
    both();
    EXPECT_EQ(n_allocations(), before);
}

TEST(Transaction, ARowIsMissingForTheThirdStateOfOneSequence) {
    Driver driver(sized(64, 1), {{kStates}});
    driver.feed(0, 2);
    driver.memory->begin_transaction();
    driver.feed(0, 2);
    driver.feed(0, 2);
    const auto state = driver.tokens(0);
    driver.memory->begin_transaction();
    driver.feed(0, 1);
    EXPECT_THAT(message_of<CacheFull>([&] { driver.feed(0, 1); }),
                testing::HasSubstr("needs another recurrent state, but all 3 are in use"));
    EXPECT_EQ(driver.memory->n_used(), 1) << "n_cells";
    driver.memory->roll_back_transaction();
    EXPECT_EQ(driver.tokens(0), state);
    driver.feed(0, 1);
    driver.memory->commit_transaction();
    EXPECT_EQ(driver.memory->n_used(), 1);
}

TEST(Transaction, AppliesPendingShiftsToCopies) {
    Driver driver(sized(64, kSequences));
    driver.feed(0, 4);
    driver.memory->add(0, {}, 3, driver.moves);
    driver.memory->copy(0, 1, {}, driver.moves);
    const Everything before(driver);
    driver.memory->begin_transaction();
    apply_shifts(driver);
    EXPECT_FALSE(driver.memory->has_shifts());
    EXPECT_EQ(driver.memory->n_used(), 8);
    EXPECT_EQ(driver.memory->rows_of(0, 0), driver.memory->rows_of(0, 1));
    driver.memory->roll_back_transaction();
    EXPECT_EQ(Everything(driver), before);
    EXPECT_TRUE(driver.memory->has_shifts());
}

}  // namespace
}  // namespace plait::transaction_test
