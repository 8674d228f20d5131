// Compares every kind of memory with a model that keeps each sequence as a list of tokens and
// records which tokens each part of the memory still holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "driver.h"

namespace plait::variants_random_test {
namespace {

constexpr int32_t kSequences = 5;
constexpr int64_t kContext = 40;
constexpr int64_t kCells = 90;  // of unified: less than all sequences can hold
constexpr int32_t kBatch = 14;

struct Kept {  // what a row holds; sequences with the same one share the row
    int id = 0;
    Position position = 0;
};
using KeptPointer = std::shared_ptr<Kept>;

struct Token {
    int id = 0;
    Position position = 0;
    std::vector<KeptPointer> kept;  // by attention group; null: freed
};

struct Sequence {
    std::vector<Token> tokens;
    KeptPointer state;                          // of recurrent layers; null: they are fresh
    std::shared_ptr<std::vector<int>> encoded;  // null: nothing was

    std::vector<KeptPointer> kept(size_t group) const {
        std::vector<KeptPointer> list;
        for (const Token& token : tokens)
            if (token.kept[group]) list.push_back(token.kept[group]);
        return list;
    }
    bool gave_back() const {
        return std::ranges::any_of(
            tokens, [](const Token& token) { return std::ranges::count(token.kept, nullptr) > 0; });
    }
};

struct Play {
    std::string name;
    MemorySpecs specs;
    bool streams = false;
    bool causal = true;
    bool shifts = true;
    uint32_t seed = 0;
};

MemoryOptions options_of(const Play& play) {
    MemoryOptions options;
    options.n_ctx = kContext;
    options.n_seq_max = kSequences;
    options.streams = play.streams;
    if (!play.streams) options.n_cells = kCells;
    options.n_batch = kBatch;
    options.n_ubatch = 5;
    options.causal = play.causal;
    return options;
}

bool sees(const Window& window, bool causal, const Token& own, size_t own_index, const Token& key,
          size_t key_index) {
    if (causal && key_index > own_index) return false;
    const Position p1 = own.position;
    const Position p0 = key.position;
    switch (window.kind) {
    case WindowKind::full: return true;
    case WindowKind::sliding: return p1 - p0 < window.tokens;
    case WindowKind::chunked: return p0 >= p1 / window.tokens * window.tokens;
    case WindowKind::symmetric: return std::abs(p1 - p0) <= window.tokens / 2;
    }
    return false;
}

class EveryMemory : public testing::TestWithParam<Play> {
protected:
    EveryMemory()
        : play(GetParam()),
          driver(options_of(play), play.specs),
          random(play.seed),
          sequences(kSequences) {
        for (uint8_t g = 0; g < driver.groups().size(); ++g) {
            const PartKind* kind = driver.groups()[g].kind;
            if (kind == &AttentionSpec::kind()) attention.push_back(g);
            if (kind == &RecurrentSpec::kind()) recurrent = g;
            if (kind == &CrossSpec::kind()) cross = g;
        }
        for (size_t g = 0; g < attention.size(); ++g)
            if (window(g).kind == WindowKind::full) full = g;
    }

    int below(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
    SequenceId any_sequence() { return below(kSequences); }
    Sequence& sequence(SequenceId s) { return sequences[static_cast<size_t>(s)]; }
    const Sequence& sequence(SequenceId s) const { return sequences[static_cast<size_t>(s)]; }
    const Window& window(size_t g) const { return driver.groups()[attention[g]].window; }
    PositionRange any_range(SequenceId s) {
        if (below(3) == 0) return {};
        const auto& tokens = sequence(s).tokens;
        const int end = tokens.empty() ? 3 : tokens.back().position + 3;
        const int a = below(3) == 0 ? 0 : below(end);
        const int b = below(end);
        return {std::min(a, b), below(3) == 0 ? INT32_MAX : std::max(a, b)};
    }

    bool same(SequenceId a, SequenceId b) const;
    void append(Batch& batch, std::vector<SequenceId> ids);
    void decode();
    void encode();
    enum class Overlap { none, part, whole };
    Overlap overlap(const Sequence& s, PositionRange range) const;
    void free_unseen(Sequence& s) const;
    bool window_is_whole(const Sequence& s) const;
    void remove();
    void copy();
    void shift();
    void discard();
    bool repositioned(Sequence& s, PositionRange range, int divisor, int delta) const;
    void defragment();
    void save_and_load();
    void rewind();
    void check_view(const Microbatch& microbatch, size_t index);
    void check();
    bool overfull() const;
    // Runs an edit. Returns true if it succeeded; otherwise checks that nothing has changed.
    bool edit(const std::function<bool()>& run);

    Play play;
    Driver driver;
    std::mt19937 random;
    std::vector<Sequence> sequences;
    std::vector<uint8_t> attention;  // groups
    std::optional<uint8_t> recurrent;
    std::optional<uint8_t> cross;
    std::optional<size_t> full;  // index into `attention`
    int next_id = 0;
    bool divided = false;  // many tokens at one position: a window's rows can be too few
    std::string outcome;
    std::map<std::string, int> outcomes;
};

// Returns true if a token can belong to both sequences, that is, if they share all rows.
bool EveryMemory::same(SequenceId a, SequenceId b) const {
    const Sequence& one = sequence(a);
    const Sequence& other = sequence(b);
    for (size_t g = 0; g < attention.size(); ++g)
        if (one.kept(g) != other.kept(g)) return false;
    const auto end = [](const Sequence& s) {
        return s.tokens.empty() ? -1 : s.tokens.back().position;
    };
    if (recurrent && (one.state != other.state || end(one) != end(other))) return false;
    return one.encoded == other.encoded;
}

void EveryMemory::append(Batch& batch, std::vector<SequenceId> ids) {
    const auto& tokens = sequence(ids[0]).tokens;
    const bool start = tokens.empty() && below(2) == 0;
    const Position position = start ? below(20) : tokens.empty() ? 0 : tokens.back().position + 1;
    Token token{next_id++, position, {}};
    for (size_t g = 0; g < attention.size(); ++g)
        token.kept.push_back(std::make_shared<Kept>(Kept{token.id, position}));
    const int before = sequence(ids[0]).state ? sequence(ids[0]).state->id : 0;
    const auto state = std::make_shared<Kept>(Kept{fold(before, token.id), 0});
    for (const SequenceId s : ids) {
        sequence(s).tokens.push_back(token);
        if (recurrent) sequence(s).state = state;
    }
    const Position given = start || below(2) == 0 ? position : kNextPosition;
    batch.add(token.id, std::span(&given, 1), ids, below(2) == 0);
}

bool EveryMemory::overfull() const {
    if (!full) return false;
    std::set<KeptPointer> all;
    for (const Sequence& s : sequences) {
        if (std::ssize(s.tokens) > kContext) return true;
        for (const Token& token : s.tokens) all.insert(token.kept[*full]);
    }
    return !play.streams && std::ssize(all) > kCells;
}

bool EveryMemory::edit(const std::function<bool()>& run) {
    bool done = false;
    outcome.clear();
    const auto cells = driver.memory->cells();
    const bool had_shifts = driver.memory->has_shifts();
    try {
        done = run();
        if (!done) outcome = "refused";
    } catch (const UnsupportedError&) {
        outcome = "unsupported";
    } catch (const InvalidArgument&) {
        outcome = "invalid";
    } catch (const CacheFull&) {
        outcome = "full";
    }
    if (!done) {
        EXPECT_EQ(driver.memory->cells(), cells);
        EXPECT_EQ(driver.memory->has_shifts(), had_shifts);
        EXPECT_TRUE(driver.moves.empty());
    }
    return done;
}

// Decodes some tokens, some of which belong to several sequences, and commits or rolls back.
void EveryMemory::decode() {
    const auto before = sequences;
    Batch batch;
    bool parted = false;
    bool bare = false;
    std::map<SequenceId, std::vector<SequenceId>> shared_with;
    const int n = 1 + below(kBatch);
    for (int i = 0; i < n; ++i) {
        std::vector<SequenceId> ids{any_sequence()};
        if (!play.streams && below(3) == 0) {
            for (SequenceId s = 0; s < kSequences; ++s) {
                if (s == ids[0] || (!same(s, ids[0]) && below(80) > 0)) continue;
                parted = parted || !same(s, ids[0]);
                ids.push_back(s);
            }
            std::shuffle(ids.begin(), ids.end(), random);
        }
        for (const SequenceId s : ids) bare = bare || (cross && !sequence(s).encoded);
        std::vector<SequenceId> sorted = ids;
        std::ranges::sort(sorted);
        if (!play.causal)  // tokens that see later ones are shared as a whole or not at all
            for (const SequenceId s : ids)
                parted = parted || shared_with.try_emplace(s, sorted).first->second != sorted;
        append(batch, ids);
    }
    const bool too_much = overfull();
    std::span<const Microbatch> microbatches;
    const bool placed = edit([&] {
        try {
            microbatches = driver.place(batch);
        } catch (const BatchError&) {
            return false;
        }
        return true;
    });
    if (!placed) {
        EXPECT_TRUE(outcome == "full" ? too_much || divided : parted || bare) << outcome;
        ++outcomes["decode " + outcome];
        sequences = before;
        return;
    }
    EXPECT_FALSE(too_much || parted || bare);
    const bool fail = below(4) == 0;
    const size_t n_run = fail
                             ? static_cast<size_t>(below(static_cast<int>(microbatches.size()) + 1))
                             : microbatches.size();
    for (size_t p = 0; p < n_run; ++p) {
        driver.write(microbatches[p], p);
        check_view(microbatches[p], p);
    }
    ++outcomes[fail ? "rollback" : "commit"];
    if (fail) {
        driver.memory->rollback();
        sequences = before;
        return;
    }
    driver.memory->commit();
    for (const SequenceId s : driver.prepared.touched) free_unseen(sequence(s));
}

// The overlap of a range with a recurrent state, which covers all positions of the sequence.
EveryMemory::Overlap EveryMemory::overlap(const Sequence& s, PositionRange range) const {
    if (!recurrent || s.tokens.empty() || range.begin >= range.end ||
        range.end <= s.tokens.front().position || range.begin > s.tokens.back().position)
        return Overlap::none;
    return range.begin <= s.tokens.front().position && range.end > s.tokens.back().position
               ? Overlap::whole
               : Overlap::part;
}

// Frees the keys that the next token cannot see, except the last key.
void EveryMemory::free_unseen(Sequence& s) const {
    if (s.tokens.empty()) return;
    Token next{0, s.tokens.back().position + 1, {}};
    for (size_t i = 0; i + 1 < s.tokens.size(); ++i)
        for (size_t g = 0; g < attention.size(); ++g)
            if (s.tokens[i].position < s.tokens.back().position &&
                !sees(window(g), true, next, s.tokens.size(), s.tokens[i], i))
                s.tokens[i].kept[g] = nullptr;
}

// Returns true if the last key and all keys that the next token sees are stored.
bool EveryMemory::window_is_whole(const Sequence& s) const {
    if (s.tokens.empty()) return true;
    const Token next{0, s.tokens.back().position + 1, {}};
    for (size_t i = 0; i < s.tokens.size(); ++i)
        for (size_t g = 0; g < attention.size(); ++g)
            if (s.tokens[i].kept[g] == nullptr &&
                (i + 1 == s.tokens.size() ||
                 sees(window(g), true, next, s.tokens.size(), s.tokens[i], i)))
                return false;
    return true;
}

void EveryMemory::encode() {
    if (!cross) return;
    const auto before = sequences;
    Batch batch;
    std::set<SequenceId> done;
    for (int i = 0; i < 1 + below(3); ++i) {
        std::vector<SequenceId> ids;
        for (SequenceId s = 0; s < kSequences; ++s)
            if (!done.contains(s) && below(4) == 0) ids.push_back(s);
        if (ids.empty()) continue;
        done.insert(ids.begin(), ids.end());
        if (play.streams) ids.resize(1);
        auto output = std::make_shared<std::vector<int>>();
        const int n = 1 + below(4);
        for (int t = 0; t < n && batch.size() < kBatch; ++t) {
            output->push_back(next_id);
            batch.add(next_id++, {}, ids, false);
        }
        if (output->empty()) continue;
        for (const SequenceId s : ids) sequence(s).encoded = output;
    }
    if (batch.size() == 0) return;
    const auto microbatches = driver.place(batch, StepKind::encode);
    for (size_t p = 0; p < microbatches.size(); ++p) driver.write(microbatches[p], p);
    ++outcomes["encode"];
    if (below(3) > 0) return driver.memory->commit();
    driver.memory->rollback();
    sequences = before;
}

// Checks the intervals of a view against a mask over all tokens.
void EveryMemory::check_view(const Microbatch& microbatch, size_t index) {
    for (size_t g = 0; g < attention.size(); ++g) {
        const auto view = driver.memory->view(attention[g], index);
        const auto& keys = driver.keys[attention[g]];
        for (size_t q = 0; q < microbatch.sequences.size(); ++q) {
            std::vector<int> stored;
            for (int32_t r = view.run_begin[q]; r < view.run_begin[q + 1]; ++r) {
                const plait::Run& run = view.runs[static_cast<size_t>(r)];
                ASSERT_EQ(run.first_key, std::ssize(stored));
                for (int32_t i = 0; i < run.count; ++i)
                    stored.push_back(keys[static_cast<size_t>(run.row + i)]);
            }
            const auto& tokens = sequence(microbatch.sequences[q]).tokens;
            // Excludes tokens of later microbatches.
            const int last_id =
                driver.prepared.source
                    .tokens[microbatch.entries[static_cast<size_t>(microbatch.begin[q + 1] - 1)]];
            const auto n = static_cast<size_t>(std::ranges::find(tokens, last_id, &Token::id) -
                                               tokens.begin() + 1);
            for (auto i = static_cast<size_t>(microbatch.begin[q]);
                 i < static_cast<size_t>(microbatch.begin[q + 1]); ++i) {
                const int id = driver.prepared.source.tokens[microbatch.entries[i]];
                const auto own =
                    static_cast<size_t>(std::ranges::find(tokens, id, &Token::id) - tokens.begin());
                std::vector<int> expected;
                for (size_t k = 0; k < n; ++k)
                    if (sees(window(g), play.causal, tokens[own], own, tokens[k], k))
                        expected.push_back(tokens[k].id);
                ASSERT_LE(view.last[i], std::ssize(stored));
                ASSERT_EQ(
                    std::vector<int>(stored.begin() + view.first[i], stored.begin() + view.last[i]),
                    expected)
                    << "group " << g;
            }
        }
    }
    if (!cross) return;
    const auto view = driver.memory->view(*cross, index);
    for (size_t q = 0; q < microbatch.sequences.size(); ++q) {
        std::vector<int> stored;
        for (int32_t r = view.run_begin[q]; r < view.run_begin[q + 1]; ++r)
            for (int32_t i = 0; i < view.runs[static_cast<size_t>(r)].count; ++i)
                stored.push_back(driver.keys[*cross][static_cast<size_t>(
                    view.runs[static_cast<size_t>(r)].row + i)]);
        ASSERT_EQ(stored, *sequence(microbatch.sequences[q]).encoded);
        for (int32_t i = microbatch.begin[q]; i < microbatch.begin[q + 1]; ++i) {
            ASSERT_EQ(view.first[static_cast<size_t>(i)], 0);
            ASSERT_EQ(view.last[static_cast<size_t>(i)], std::ssize(stored));
        }
    }
}

void EveryMemory::remove() {
    const SequenceId s = any_sequence();
    const PositionRange range = any_range(s);
    Sequence after = sequence(s);
    std::erase_if(after.tokens, [&](const Token& t) { return range.contains(t.position); });
    const bool part = overlap(sequence(s), range) == Overlap::part;
    if (after.tokens.empty()) after.state = nullptr;
    if (range.whole()) after.encoded = nullptr;
    if (edit([&] { return driver.memory->remove(s, range); })) {
        EXPECT_TRUE(!part && window_is_whole(after));
        sequence(s) = after;
    } else {
        EXPECT_TRUE(part || sequence(s).gave_back());
        ++outcomes["remove refused"];
    }
}

void EveryMemory::copy() {
    const SequenceId from = any_sequence();
    const SequenceId to = any_sequence();
    const PositionRange range = any_range(from);
    Sequence after;
    const Sequence& source = sequence(from);
    const Sequence& target = sequence(to);
    const auto inside = [&](const Token& t) { return range.contains(t.position); };
    std::ranges::copy_if(target.tokens, std::back_inserter(after.tokens),
                         [&](const Token& t) { return t.position < range.begin; });
    for (Token token : source.tokens) {
        if (!inside(token)) continue;
        for (KeptPointer& kept : token.kept)
            if (kept && play.streams) kept = std::make_shared<Kept>(*kept);
        after.tokens.push_back(token);
    }
    std::ranges::copy_if(target.tokens, std::back_inserter(after.tokens),
                         [&](const Token& t) { return t.position >= range.end; });
    const Overlap given = overlap(source, range);
    const Overlap replaced = overlap(target, range);
    const bool part = given == Overlap::part || replaced == Overlap::part ||
                      (given == Overlap::whole && replaced == Overlap::none &&
                       !target.tokens.empty() && recurrent);
    after.state = given == Overlap::whole ? source.state
                  : after.tokens.empty()  ? nullptr
                                          : target.state;
    after.encoded = target.encoded;
    if (range.whole() ||
        (range.begin < range.end && source.encoded && (range.begin == 0 || !target.encoded)))
        after.encoded = source.encoded;
    const bool done = edit([&] {
        driver.memory->copy(from, to, range, driver.moves);
        return true;
    });
    if (from == to) {
        EXPECT_TRUE(done);
    } else if (done) {
        EXPECT_TRUE(!part && window_is_whole(after));
        if (!play.streams) {
            EXPECT_TRUE(driver.moves.empty());
        }
        sequence(to) = after;
        free_unseen(sequence(to));
        EXPECT_FALSE(overfull());
    } else {
        ++outcomes["copy " + outcome];
        if (outcome == "unsupported") {
            EXPECT_TRUE(part || source.gave_back() || target.gave_back());
        } else {
            EXPECT_TRUE(outcome == "full" &&
                        (divided || (full && std::ssize(after.tokens) > kContext)));
        }
    }
}

// Returns false if positions would become negative or change their order.
bool EveryMemory::repositioned(Sequence& s, PositionRange range, int divisor, int delta) const {
    for (Token& token : s.tokens) {
        if (!range.contains(token.position)) continue;
        token.position = token.position / divisor + delta;
        if (token.position < 0) return false;
        for (KeptPointer& kept : token.kept)
            if (kept) kept = std::make_shared<Kept>(Kept{token.id, token.position});
    }
    return std::ranges::is_sorted(s.tokens, {}, &Token::position);
}

void EveryMemory::shift() {
    const SequenceId s = any_sequence();
    const PositionRange range = any_range(s);
    const bool divide = below(6) == 0;
    const int divisor = divide ? 1 + below(3) : 1;
    const int delta = divide ? 0 : below(9) - 4;
    Sequence after = sequence(s);
    const bool ordered = repositioned(after, range, divisor, delta);
    const bool done = edit([&] {
        divide ? driver.memory->divide(s, range, divisor, driver.moves)
               : driver.memory->add(s, range, delta, driver.moves);
        return true;
    });
    ++outcomes["shift " + (done ? "done" : outcome)];
    if (done) {
        if (divisor == 1 && delta == 0) return;
        // Without a full attention part, the memory does not store all positions, so it accepts
        // some shifts that reorder them.
        if (full) {
            EXPECT_TRUE(ordered);
        }
        if (!ordered) {
            sequence(s).tokens.clear();
            sequence(s).state = nullptr;
            EXPECT_TRUE(driver.memory->remove(s, {}));
            driver.moves.clear();
            return;
        }
        EXPECT_TRUE(window_is_whole(after));
        // Tokens at the same position: a window holds more of them than it has positions.
        const auto twice = std::ranges::adjacent_find(after.tokens, {}, &Token::position);
        divided = divided || divide || twice != after.tokens.end();
        sequence(s) = after;
        free_unseen(sequence(s));
    } else if (outcome == "invalid") {
        // Without a full attention part, positions that were removed between freed ones count as
        // freed.
        EXPECT_TRUE(!ordered || (!full && sequence(s).gave_back()));
    } else if (outcome == "unsupported") {
        EXPECT_TRUE(sequence(s).gave_back());
    } else {
        EXPECT_EQ(outcome, "full");
    }
}

void EveryMemory::discard() {
    const SequenceId s = any_sequence();
    const PositionRange range = any_range(s);
    Sequence after = sequence(s);
    if (range.begin < range.end) {
        std::erase_if(after.tokens, [&](const Token& t) { return range.contains(t.position); });
        EXPECT_TRUE(repositioned(after, {.begin = range.end}, 1, range.begin - range.end));
    }
    const bool part = overlap(sequence(s), range) == Overlap::part;
    if (after.tokens.empty()) after.state = nullptr;
    if (range.whole()) after.encoded = nullptr;
    const bool done = edit([&] {
        driver.memory->discard(s, range, driver.moves);
        return true;
    });
    ++outcomes["discard " + (done ? "done" : outcome)];
    if (done) {
        EXPECT_TRUE(!part && window_is_whole(after));
        sequence(s) = after;
        if (range.begin < range.end) free_unseen(sequence(s));
    } else if (outcome == "unsupported") {
        EXPECT_TRUE(part || sequence(s).gave_back());
    } else {
        EXPECT_EQ(outcome, "full");
    }
}

void EveryMemory::defragment() {
    const int max_moves = 1 + below(6);
    std::vector<RowMove> round;
    int64_t moved = 0;
    int rounds = 0;
    do {
        driver.carry_out_moves();
        moved = driver.memory->defragment(max_moves, driver.moves);
        std::map<uint8_t, int> n_moves;
        std::map<uint8_t, std::set<int32_t>> sources;
        for (const RowMove& move : driver.moves) {
            EXPECT_LE(++n_moves[move.group], max_moves);
            for (int32_t i = 0; i < move.n; ++i)
                EXPECT_TRUE(sources[move.group].insert(move.from + i).second) << "moved twice";
        }
        EXPECT_EQ(moved == 0, driver.moves.empty());
        ASSERT_LT(++rounds, 2000);
    } while (moved > 0 && below(50) > 0);
    if (moved > 0) return;  // somebody stopped half way
    ++outcomes["defragmented"];
    for (const uint8_t g : attention) {
        const int32_t per_stream =
            static_cast<int32_t>(driver.groups()[g].n_rows) / driver.memory->n_streams();
        std::map<int32_t, std::set<int32_t>> used;
        for (SequenceId s = 0; s < kSequences; ++s)
            for (const int32_t row : driver.memory->rows_of(g, s))
                used[row / per_stream].insert(row % per_stream);
        for (const auto& [stream, rows] : used)
            EXPECT_EQ(*rows.rbegin(), std::ssize(rows) - 1) << "group " << int{g};
    }
}

// Saves to another memory and back, or restores one sequence in place of another.
void EveryMemory::save_and_load() {
    driver.apply_shifts();
    const auto bytes_of = [](const Driver& from, const std::vector<StateRows>& rows) {
        std::map<std::pair<uint8_t, int32_t>, std::pair<int, Position>> bytes;
        for (const StateRows& group : rows)
            for (size_t i = 0; i < group.items.size(); ++i) {
                const auto row = static_cast<size_t>(group.rows[i]);
                bytes[{group.group, group.items[i]}] = {from.keys[group.group][row],
                                                        from.rotations[group.group][row]};
            }
        return bytes;
    };
    const auto write = [](Driver& to, const std::vector<StateRows>& rows, const auto& bytes) {
        for (const StateRows& group : rows)
            for (size_t i = 0; i < group.items.size(); ++i) {
                const auto& [key, rotation] = bytes.at({group.group, group.items[i]});
                to.keys[group.group][static_cast<size_t>(group.rows[i])] = key;
                to.rotations[group.group][static_cast<size_t>(group.rows[i])] = rotation;
            }
    };
    std::vector<StateRows> rows;
    if (below(2) == 0) {
        const MemoryState state = driver.memory->describe({}, rows);
        const auto bytes = bytes_of(driver, rows);
        MemoryOptions other = options_of(play);
        other.n_ctx += 3;
        if (!play.streams) *other.n_cells += 10;
        Driver copy(other, play.specs);
        copy.memory->restore(state, {}, rows);
        write(copy, rows, bytes);
        EXPECT_EQ(copy.memory->describe({}, rows), state);  // save(load(save(x))) == save(x)
        EXPECT_EQ(bytes_of(copy, rows), bytes);
        driver.memory->restore(state, {}, rows);
        write(driver, rows, bytes);
        EXPECT_EQ(driver.memory->describe({}, rows), state);
        ++outcomes["loaded"];
        return;
    }
    const SequenceId from = any_sequence();
    const SequenceId to = any_sequence();
    const MemoryState state = driver.memory->describe(from, rows);
    const auto bytes = bytes_of(driver, rows);
    const bool done = edit([&] {
        driver.memory->restore(state, to, rows);
        return true;
    });
    ++outcomes["load one " + (done ? "done" : outcome)];
    if (!done) {
        EXPECT_TRUE(outcome == "full" && (!play.streams || divided));
        return;
    }
    write(driver, rows, bytes);
    sequence(to) = sequence(from);
    for (Token& token : sequence(to).tokens)
        for (KeptPointer& kept : token.kept)
            if (kept) kept = std::make_shared<Kept>(*kept);
    if (sequence(to).state) sequence(to).state = std::make_shared<Kept>(*sequence(to).state);
    if (sequence(to).encoded)
        sequence(to).encoded = std::make_shared<std::vector<int>>(*sequence(to).encoded);
}

// Rewinds to the nearest possible position and checks the tokens before it.
void EveryMemory::rewind() {
    const SequenceId s = any_sequence();
    if (sequence(s).tokens.empty()) return;
    const Position wanted = below(sequence(s).tokens.back().position + 2);
    const RewindPoint point = driver.memory->rewind_point(s, wanted);
    EXPECT_LE(point.next, wanted);
    const auto ids_before = [&](SequenceId q) {
        std::vector<int> ids;
        for (const Token& token : sequence(q).tokens)
            if (token.position < point.next) ids.push_back(token.id);
        return ids;
    };
    const PositionRange kept{0, point.next};
    if (point.from == s) {
        ++outcomes["rewound"];
        const PositionRange rest{point.next, INT32_MAX};
        ASSERT_TRUE(driver.memory->remove(s, rest));
        std::erase_if(sequence(s).tokens,
                      [&](const Token& t) { return rest.contains(t.position); });
        if (sequence(s).tokens.empty()) sequence(s).state = nullptr;
        if (rest.whole()) sequence(s).encoded = nullptr;
        return;
    }
    ++outcomes["rewound to a fork"];
    ASSERT_EQ(ids_before(s), ids_before(point.from));
    driver.memory->refork(point, s, driver.moves);
    sequence(s) = sequence(point.from);
    std::erase_if(sequence(s).tokens, [&](const Token& t) { return !kept.contains(t.position); });
    EXPECT_TRUE(window_is_whole(sequence(s)));
    for (Token& token : sequence(s).tokens)
        for (KeptPointer& pointer : token.kept)
            if (pointer && play.streams) pointer = std::make_shared<Kept>(*pointer);
    free_unseen(sequence(s));
}

void EveryMemory::check() {
    driver.carry_out_moves();
    const Memory& memory = *driver.memory;
    for (SequenceId s = 0; s < kSequences; ++s) {
        const auto& tokens = sequence(s).tokens;
        const auto bounds = memory.positions(s);
        ASSERT_EQ(bounds.has_value(), !tokens.empty());
        if (bounds) {
            EXPECT_EQ(bounds->max, tokens.back().position);
        }
        if (bounds && full) {
            EXPECT_EQ(bounds->min, tokens.front().position);
        }
        if (recurrent) {
            const auto rows = memory.rows_of(*recurrent, s);
            ASSERT_EQ(rows.size(), tokens.empty() ? 0u : 1u);
            int state = 0;
            for (const Token& token : tokens) state = fold(state, token.id);
            if (!rows.empty()) {
                EXPECT_NE(rows[0], 0);
                ASSERT_EQ(driver.keys[*recurrent][static_cast<size_t>(rows[0])], state);
            }
        }
        if (cross) {
            const auto& encoded = sequence(s).encoded;
            ASSERT_EQ(driver.tokens(s, *cross), encoded ? *encoded : std::vector<int>{});
        }
    }
    if (recurrent) {
        EXPECT_EQ(driver.keys[*recurrent][0], 0) << "the state of an empty sequence";
    }
    for (size_t g = 0; g < attention.size(); ++g) {
        std::map<int32_t, KeptPointer> by_row;
        std::set<KeptPointer> all;
        for (SequenceId s = 0; s < kSequences; ++s) {
            const auto rows = memory.rows_of(attention[g], s);
            const auto kept = sequence(s).kept(g);
            ASSERT_EQ(rows.size(), kept.size()) << "group " << g;
            all.insert(kept.begin(), kept.end());
            for (size_t k = 0; k < rows.size(); ++k) {
                const auto row = static_cast<size_t>(rows[k]);
                ASSERT_EQ(driver.keys[attention[g]][row], kept[k]->id);
                ASSERT_EQ(by_row.try_emplace(rows[k], kept[k]).first->second, kept[k])
                    << "a row with two tokens";
                if (!memory.has_shifts()) {
                    ASSERT_EQ(driver.rotations[attention[g]][row], kept[k]->position);
                }
            }
        }
        ASSERT_EQ(all.size(), by_row.size()) << "shared rows of group " << g;
        if (g == full.value_or(0) && attention.size() == 1) {
            ASSERT_EQ(memory.n_used(), std::ssize(all));
        }
    }
}

// # S2-18 # S2-46 # S2-47 # S2-49 # S2-50 # S3-20 # S3-21 # S3-30 # S3-32 # S4-08 # S4-10 # S4-14
TEST_P(EveryMemory, MatchesListsOfTokensUnderRandomOperations) {
    for (int step = 0; step < 10000 && !HasFailure(); ++step) {
        SCOPED_TRACE(step);
        const int op = below(100);
        if (op < 45) {
            decode();
        } else if (op < 50) {
            encode();
        } else if (op < 60) {
            remove();
        } else if (op < 74) {
            copy();
        } else if (op < 80) {
            if (play.shifts) shift();
        } else if (op < 82) {
            if (play.shifts) discard();
        } else if (op < 86) {
            driver.apply_shifts();
        } else if (op < 91) {
            defragment();
        } else if (op < 94) {
            save_and_load();
        } else if (op < 98) {
            rewind();
        } else if (below(4) > 0) {
            const SequenceId s = any_sequence();
            for (SequenceId other = 0; other < kSequences; ++other)
                if (other != s) sequence(other) = {};
            driver.memory->keep(s);
        } else {
            for (Sequence& s : sequences) s = {};
            driver.memory->clear();
            divided = false;
        }
        check();
    }
    for (const char* met : {"commit", "rollback", "loaded", "load one done", "rewound"})
        EXPECT_GT(outcomes[met], 0) << met;
    if (!full && !recurrent) {
        EXPECT_GT(outcomes["rewound to a fork"], 0);
    }
    if (cross) {
        EXPECT_GT(outcomes["encode"], 0);
    }
    // No rows have leaked: every sequence can be filled again.
    driver.memory->clear();
    EXPECT_EQ(driver.memory->n_used(), 0);
    for (SequenceId s = 0; s < kSequences; ++s) {
        if (cross) driver.encode(s, kBatch);
        driver.feed(s, kBatch);
    }
}

std::vector<Play> plays() {
    const Window sliding{WindowKind::sliding, 6};
    const Window narrow{WindowKind::sliding, 3};
    const Window chunked{WindowKind::chunked, 5};
    const Window symmetric{WindowKind::symmetric, 8};
    const StateSpec keys = full_layer();
    const StateSpec states = RecurrentSpec{{3, 8}};
    const auto layer = [](Window window) { return StateSpec{window_layer(window)}; };
    const std::vector<Play> kinds = {
        {"Unified", {{keys}, {keys}}},
        {"Streams", {{keys}}, true},
        {"Sliding", {{layer(sliding)}, {layer(narrow)}}},
        {"SlidingUnshifted", {{layer(sliding)}}, false, true, false},
        {"SlidingBesideFull", {{layer(sliding)}, {keys}, {layer(narrow)}}},
        {"SlidingBesideFullInStreams", {{keys}, {layer(sliding)}}, true},
        {"Chunked", {{keys}, {layer(chunked)}}},
        {"SymmetricBothWays", {{layer(symmetric)}, {keys}}, false, false},
        {"Recurrent", {{states}, {}, {RecurrentSpec{{0, 8}}}}},
        {"Hybrid", {{keys}, {states}, {}, {keys}}},
        {"HybridInStreams", {{states}, {keys}}, true},
        {"HybridWithWindow", {{states}, {layer(sliding)}}},
        {"Cross", {{keys, CrossSpec{2, 4, 4}}, {WithinSpec{}}}},
        {"CrossInStreams", {{keys, CrossSpec{2, 4, 4}}}, true},
    };
    std::vector<Play> all;
    for (const Play& kind : kinds) {
        for (uint32_t seed = 1; seed <= 5; ++seed) {
            all.push_back(kind);
            all.back().seed = seed;
        }
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Random, EveryMemory, testing::ValuesIn(plays()), [](const auto& one) {
    return one.param.name + std::to_string(one.param.seed);
});

}  // namespace
}  // namespace plait::variants_random_test
