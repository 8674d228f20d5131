// Compares attention memories with a model that keeps each sequence as a list of tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "driver.h"

namespace plait::attention_random_test {
namespace {

struct Token {
    int id = 0;
    Position position = 0;
    int32_t ordinal = 0;
    int32_t shift = 0;
};
using List = std::vector<std::shared_ptr<Token>>;

struct Model {
    std::vector<List> sequences;

    std::set<const Token*> held() const {
        std::set<const Token*> all;
        for (const List& list : sequences)
            for (const auto& token : list) all.insert(token.get());
        return all;
    }
    bool shared(const Token* token) const {
        int n = 0;
        for (const List& list : sequences)
            for (const auto& other : list) n += other.get() == token ? 1 : 0;
        return n > 1;
    }
    static bool inside(const std::shared_ptr<Token>& token, PositionRange range) {
        return range.contains(token->position);
    }
};

struct Play {
    bool streams = false;
    bool causal = true;
    uint32_t seed = 0;
};

std::string name_of(const testing::TestParamInfo<Play>& info) {
    return std::string(info.param.streams ? "Streams" : "Unified") +
           (info.param.causal ? "Causal" : "BothWays") + std::to_string(info.param.seed);
}

constexpr int32_t kSequences = 5;
constexpr int64_t kContext = 40;
constexpr int64_t kCells = 80;  // of unified: less than all sequences can hold

MemoryOptions options_of(const Play& play) {
    MemoryOptions options;
    options.n_ctx = kContext;
    options.n_seq_max = kSequences;
    options.streams = play.streams;
    if (!play.streams) options.n_cells = kCells;
    options.n_batch = 64;
    options.n_ubatch = 5;
    options.causal = play.causal;
    options.swa_full = true;
    return options;
}

const Window kWindows[] = {{WindowKind::full, 0},
                           {WindowKind::sliding, 5},
                           {WindowKind::chunked, 8},
                           {WindowKind::symmetric, 6}};

MemorySpecs specs_of_every_window() {
    std::vector<AttentionSpec> layers;
    for (const Window& window : kWindows) {
        layers.push_back(full_layer());
        layers.back().window = window;
    }
    layers[1].needs_key_positions = true;
    return attention_specs(layers);
}

class EveryAttentionMemory : public testing::TestWithParam<Play> {
protected:
    EveryAttentionMemory()
        : play(GetParam()), driver(options_of(play), specs_of_every_window()), random(play.seed) {
        model.sequences.resize(kSequences);
    }

    int below(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
    SequenceId any_sequence() { return below(kSequences); }
    PositionRange any_range(SequenceId s) {
        if (below(4) == 0) return {};
        const auto& list = model.sequences[static_cast<size_t>(s)];
        const int end = list.empty() ? 3 : list.back()->position + 3;
        const int a = below(end);
        const int b = below(end);
        return {std::min(a, b), below(3) == 0 ? INT32_MAX : std::max(a, b)};
    }
    List& list(SequenceId s) { return model.sequences[static_cast<size_t>(s)]; }
    int64_t n_free() const {
        return driver.memory->n_cells() - static_cast<int64_t>(model.held().size());
    }

    void decode();
    void remove();
    void copy();
    void shift(bool divide);
    bool repositioned(List& list, PositionRange range, int divisor, int delta, int* n_copied);
    void check();
    void check_view(const Microbatch& microbatch, size_t index);
    bool visible(const Window& window, size_t own, size_t key, const List& list) const;

    Play play;
    Driver driver;
    Model model;
    std::mt19937 random;
    int next_id = 0;
    std::map<std::string, int> outcomes;  // so that a test knows that it met every case
};

// Decodes some tokens, some of which belong to several sequences, and commits or rolls back.
void EveryAttentionMemory::decode() {
    const auto before = model.sequences;
    Batch batch;
    bool parted = false;
    std::map<SequenceId, std::set<SequenceId>> shared_with;
    std::vector<int64_t> added(kSequences, 0);
    const int n = 1 + below(14);
    for (int i = 0; i < n; ++i) {
        std::vector<SequenceId> ids{any_sequence()};
        if (!play.streams && below(3) == 0) {
            // All sequences with the same content as the first; rarely another one, with which the
            // batch is invalid.
            for (SequenceId s = 0; s < kSequences; ++s)
                if (s != ids[0] && (list(s) == list(ids[0]) || below(60) == 0)) ids.push_back(s);
            std::shuffle(ids.begin(), ids.end(), random);
        }
        List& first = list(ids[0]);
        for (const SequenceId s : ids) parted = parted || list(s) != first;
        // Tokens that see later ones are shared as a whole or not at all.
        const std::set<SequenceId> sharing(ids.begin(), ids.end());
        for (const SequenceId s : ids)
            parted = parted ||
                     (!play.causal && shared_with.try_emplace(s, sharing).first->second != sharing);
        auto token = std::make_shared<Token>();
        token->id = next_id++;
        // An empty sequence may start at any position.
        const bool start = first.empty() && below(2) == 0;
        token->position = start ? below(20) : first.empty() ? 0 : first.back()->position + 1;
        token->ordinal = first.empty() ? 0 : first.back()->ordinal + 1;
        for (const SequenceId s : ids) {
            list(s).push_back(token);
            ++added[static_cast<size_t>(s)];
        }
        const Position given = start || below(2) == 0 ? token->position : kNextPosition;
        batch.add(token->id, std::span(&given, 1), ids, below(2) == 0);
    }

    bool full = !play.streams && static_cast<int64_t>(model.held().size()) > kCells;
    for (const List& list : model.sequences) full = full || std::ssize(list) > kContext;
    const auto cells = driver.memory->cells();
    if (parted || full) {
        if (parted) {
            EXPECT_THROW(driver.place(batch), BatchError);
        } else {
            EXPECT_THROW(driver.place(batch), CacheFull);
        }
        ++outcomes[parted ? "parted" : "full"];
        model.sequences = before;
        EXPECT_EQ(driver.memory->cells(), cells);
        return;
    }
    const auto microbatches = driver.place(batch);
    const bool fail = below(4) == 0;
    const size_t n_run = fail
                             ? static_cast<size_t>(below(static_cast<int>(microbatches.size()) + 1))
                             : microbatches.size();
    for (size_t p = 0; p < n_run; ++p) {
        driver.write(microbatches[p], p);
        check_view(microbatches[p], p);
    }
    ++outcomes[fail ? "rollback" : "commit"];
    if (!fail) return driver.memory->commit();
    driver.memory->rollback();
    model.sequences = before;
    EXPECT_EQ(driver.memory->cells(), cells);
}

bool EveryAttentionMemory::visible(const Window& window, size_t own, size_t key,
                                   const List& tokens) const {
    if (play.causal && key > own) return false;
    const int p1 = tokens[own]->position;
    const int p0 = tokens[key]->position;
    switch (window.kind) {
    case WindowKind::full: return true;
    case WindowKind::sliding: return p1 - p0 < window.tokens;
    case WindowKind::chunked: return p0 >= p1 / window.tokens * window.tokens;
    case WindowKind::symmetric: return std::abs(p1 - p0) <= window.tokens / 2;
    }
    return false;
}

// Checks the intervals of a view against a mask over all keys, including those of later
// microbatches.
void EveryAttentionMemory::check_view(const Microbatch& microbatch, size_t index) {
    for (size_t g = 0; g < std::size(kWindows); ++g) {
        const auto view = driver.memory->view(static_cast<uint8_t>(g), index);
        ASSERT_EQ(view.write_rows.size(), microbatch.entries.size());
        for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
            std::vector<int> stored;  // the ids that the runs lead to
            for (int32_t r = view.run_begin[s]; r < view.run_begin[s + 1]; ++r) {
                const plait::Run& run = view.runs[static_cast<size_t>(r)];
                ASSERT_GT(run.count, 0);
                EXPECT_EQ(run.first_key, std::ssize(stored));
                for (int32_t i = 0; i < run.count; ++i) {
                    const auto& token = list(microbatch.sequences[s])[stored.size()];
                    EXPECT_EQ(token->ordinal, run.ordinal + i);
                    if (view.key_positions.size() > 0) {
                        const auto at = static_cast<size_t>(view.key_begin[s]) + stored.size();
                        EXPECT_EQ(view.key_positions[at], token->position);
                    }
                    stored.push_back(driver.keys[g][static_cast<size_t>(run.row + i)]);
                }
            }
            const List& tokens = list(microbatch.sequences[s]);
            for (int32_t t = microbatch.begin[s]; t < microbatch.begin[s + 1]; ++t) {
                const auto i = static_cast<size_t>(t);
                const int id = driver.prepared.source.tokens[microbatch.entries[i]];
                const auto own = static_cast<size_t>(
                    std::ranges::find(tokens, id, [](const auto& token) { return token->id; }) -
                    tokens.begin());
                ASSERT_LT(own, stored.size());
                for (size_t k = 0; k < stored.size(); ++k) {
                    const bool seen = view.first[i] <= static_cast<int32_t>(k) &&
                                      static_cast<int32_t>(k) < view.last[i];
                    ASSERT_EQ(seen, visible(kWindows[g], own, k, tokens)) << "group " << g;
                    ASSERT_EQ(stored[k], tokens[k]->id);
                }
                ASSERT_LE(view.last[i], std::ssize(stored));
            }
        }
    }
    const auto asked = driver.memory->view(1, index);
    EXPECT_EQ(asked.key_begin.size(), microbatch.sequences.size() + 1);
    EXPECT_TRUE(driver.memory->view(0, index).key_positions.empty());
}

void EveryAttentionMemory::remove() {
    const SequenceId s = any_sequence();
    const PositionRange range = any_range(s);
    std::erase_if(list(s), [&](const auto& token) { return Model::inside(token, range); });
    EXPECT_TRUE(driver.memory->remove(s, range));
}

void EveryAttentionMemory::copy() {
    const SequenceId from = any_sequence();
    const SequenceId to = any_sequence();
    const PositionRange range = any_range(from);
    List before;
    List middle;
    List after;
    for (const auto& token : list(from)) {
        if (!Model::inside(token, range)) continue;
        middle.push_back(play.streams ? std::make_shared<Token>(*token) : token);
    }
    for (const auto& token : list(to)) {
        if (token->position < range.begin) before.push_back(token);
        if (token->position >= range.end) after.push_back(token);
    }
    if (from != to &&
        static_cast<int64_t>(before.size() + middle.size() + after.size()) > kContext) {
        const auto cells = driver.memory->cells();
        EXPECT_THROW(driver.memory->copy(from, to, range, driver.moves), CacheFull);
        EXPECT_EQ(driver.memory->cells(), cells);
        ++outcomes["copy full"];
        return;
    }
    driver.memory->copy(from, to, range, driver.moves);
    EXPECT_TRUE(play.streams || driver.moves.empty()) << "unified shares rows";
    if (from == to) return;
    list(to) = before;
    list(to).insert(list(to).end(), middle.begin(), middle.end());
    list(to).insert(list(to).end(), after.begin(), after.end());
}

// Shifts or divides the positions of one list in a range, copying shared tokens. Returns false and
// changes nothing if positions would become negative or change their order.
bool EveryAttentionMemory::repositioned(List& tokens, PositionRange range, int divisor, int delta,
                                        int* n_copied) {
    List moved;
    int n = 0;
    for (const auto& token : tokens) {
        moved.push_back(token);
        if (!Model::inside(token, range)) continue;
        n += model.shared(token.get()) ? 1 : 0;
        moved.back() = std::make_shared<Token>(*token);
        moved.back()->position = token->position / divisor + delta;
        moved.back()->shift += moved.back()->position - token->position;
        if (moved.back()->position < 0) return false;
    }
    const auto position = [](const auto& token) { return token->position; };
    if (!std::ranges::is_sorted(moved, {}, position)) return false;
    *n_copied = n;
    tokens = moved;
    return true;
}

void EveryAttentionMemory::shift(bool divide) {
    const SequenceId s = any_sequence();
    const PositionRange range = any_range(s);
    const int divisor = divide ? 1 + below(3) : 1;
    const int delta = divide ? 0 : below(9) - 4;
    const auto run = [&] {
        divide ? driver.memory->divide(s, range, divisor, driver.moves)
               : driver.memory->add(s, range, delta, driver.moves);
    };
    const List before = list(s);
    const int64_t free = n_free();
    int n_copied = 0;
    const bool nothing = divide ? divisor == 1 : delta == 0;
    if (!nothing && !repositioned(list(s), range, divisor, delta, &n_copied)) {
        EXPECT_THROW(run(), InvalidArgument);
        ++outcomes["reorder"];
    } else if (n_copied > free) {
        list(s) = before;
        EXPECT_THROW(run(), CacheFull);
        ++outcomes["shift full"];
    } else {
        run();
        ++outcomes[n_copied > 0 ? "shift copied" : "shift"];
    }
}

void EveryAttentionMemory::check() {
    driver.carry_out_moves();
    struct Expected {
        const Token* token;
        std::vector<SequenceId> sequences;
    };
    std::map<const Token*, size_t> index;
    std::vector<Expected> expected;
    for (SequenceId s = 0; s < kSequences; ++s) {
        const auto bounds = driver.memory->positions(s);
        ASSERT_EQ(bounds.has_value(), !list(s).empty());
        if (bounds) {
            EXPECT_EQ(bounds->min, list(s).front()->position);
            EXPECT_EQ(bounds->max, list(s).back()->position);
        }
        for (const auto& token : list(s)) {
            const auto [at, fresh] = index.try_emplace(token.get(), expected.size());
            if (fresh) expected.push_back({token.get(), {}});
            expected[at->second].sequences.push_back(s);
        }
    }
    ASSERT_EQ(driver.memory->n_used(), std::ssize(expected));
    std::map<int32_t, const Cell*> by_row;
    const auto cells = driver.memory->cells();
    ASSERT_EQ(cells.size(), expected.size());
    for (const Cell& cell : cells) by_row[cell.row] = &cell;
    ASSERT_EQ(by_row.size(), cells.size());
    EXPECT_EQ(driver.memory->has_shifts(),
              std::ranges::any_of(cells, [](const Cell& cell) { return cell.shift != 0; }));

    for (SequenceId s = 0; s < kSequences; ++s) {
        const auto rows = driver.memory->rows_of(0, s);
        ASSERT_EQ(rows.size(), list(s).size());
        EXPECT_EQ(std::set<int32_t>(rows.begin(), rows.end()).size(), rows.size());
        for (size_t k = 0; k < rows.size(); ++k) {
            const Token& token = *list(s)[k];
            ASSERT_TRUE(by_row.contains(rows[k]));
            const Cell& cell = *by_row[rows[k]];
            for (const auto& keys : driver.keys)
                ASSERT_EQ(keys[static_cast<size_t>(cell.row)], token.id);
            ASSERT_EQ(cell.position[0], token.position);
            ASSERT_EQ(cell.ordinal, token.ordinal);
            ASSERT_EQ(cell.sequences, expected[index[&token]].sequences);
            ASSERT_EQ(cell.stream, play.streams ? s : 0);
            ASSERT_TRUE(!play.streams || cell.row / kContext == s);
            ASSERT_EQ(driver.rotations[0][static_cast<size_t>(cell.row)] + cell.shift,
                      token.position);
        }
    }
}

// Positions do not depend on row numbers. # S1-35 # S1-37 # S1-47 # S2-38 # S2-50
TEST_P(EveryAttentionMemory, MatchesAListOfTokensUnderRandomOperations) {
    for (int step = 0; step < 10000 && !HasFailure(); ++step) {
        SCOPED_TRACE(step);
        const int op = below(100);
        if (op < 45) {
            decode();
        } else if (op < 58) {
            remove();
        } else if (op < 75) {
            copy();
        } else if (op < 87) {
            shift(false);
        } else if (op < 92) {
            shift(true);
        } else if (op < 98) {
            driver.apply_shifts();
            EXPECT_FALSE(driver.memory->has_shifts());
        } else if (below(4) > 0) {
            const SequenceId s = any_sequence();
            for (SequenceId other = 0; other < kSequences; ++other)
                if (other != s) list(other).clear();
            driver.memory->keep(s);
        } else {
            for (List& tokens : model.sequences) tokens.clear();
            driver.memory->clear();
        }
        check();
    }
    for (const char* met : {"commit", "rollback", "full", "copy full", "shift", "reorder"})
        EXPECT_GT(outcomes[met], 0) << met;
    if (!play.streams) {
        for (const char* met : {"parted", "shift copied", "shift full"})
            EXPECT_GT(outcomes[met], 0) << met;
    }
}

INSTANTIATE_TEST_SUITE_P(Random, EveryAttentionMemory,
                         testing::Values(Play{false, true, 1}, Play{false, true, 2},
                                         Play{false, true, 3}, Play{true, true, 1},
                                         Play{true, true, 2}, Play{false, false, 1},
                                         Play{true, false, 1}),
                         name_of);

}  // namespace
}  // namespace plait::attention_random_test
