// Adds a kind of memory from this file alone, as CONTRIBUTING.md describes, and compares it with a
// plain model. The kind stores the rows of the last N tokens of each sequence, as a layer with a
// short convolution needs them.
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "all_or_nothing.h"
#include "base/error.h"
#include "base/text.h"
#include "driver.h"
#include "memory/layout_builder.h"

namespace plait::new_kind_test {
namespace {

struct LastTokensSpec {
    int n_tokens = 0;  // a token sees this many keys, including its own
    int width = 0;
    static const PartKind& kind();
};

// Rows of one sequence. A step must not overwrite the keys that rollback() needs.
int32_t ring_size(const Window& window, const MemoryOptions& options) {
    return window.tokens + options.n_batch;
}

// Each sequence has a ring of rows; the key with ordinal i is in row i % ring_size.
class LastTokensPart final : public Part {
public:
    LastTokensPart(uint8_t group, const Window& window, const MemoryOptions& options)
        : Part(LastTokensSpec::kind()),
          group_(group),
          n_tokens_(window.tokens),
          ring_size_(ring_size(window, options)),
          sequences_(static_cast<size_t>(options.n_seq_max)) {}

    std::vector<int32_t> rows_of(SequenceId s) const override {
        std::vector<int32_t> rows;
        for (Position p = at(s).stored; p < at(s).end; ++p) rows.push_back(row(s, p));
        return rows;
    }
    std::optional<PositionBounds> positions(SequenceId s) const override {
        if (at(s).begin == at(s).end) return std::nullopt;
        return PositionBounds{at(s).begin, at(s).end - 1};
    }
    bool same_content(std::span<const SequenceId>) const override { return false; }

    void check_batch(StepKind, const PreparedBatch& batch) const override {
        if (batch.sequences.size() > batch.size())
            throw BatchError("decode: a token can only belong to one sequence");
    }
    void place(StepKind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override {
        batch_ = &batch;
        microbatches_ = microbatches;
        before_ = sequences_;
        for (size_t i = 0; i < batch.size(); ++i) {
            Sequence& s = at(batch.first_sequence(i));
            if (s.begin == s.end) s = {batch.position(i), batch.position(i), batch.position(i)};
            s.end = batch.position(i) + 1;
        }
    }
    void commit() noexcept override {
        for (Sequence& s : sequences_) s.stored = std::max(s.stored, s.end - n_tokens_);
        microbatches_ = {};
    }
    void rollback() noexcept override {
        if (!microbatches_.empty()) sequences_ = before_;
        microbatches_ = {};
    }
    GroupView view(const GroupInfo&, size_t index) override {
        const Microbatch& microbatch = microbatches_[index];
        runs_.clear();
        run_begin_.assign(1, 0);
        write_rows_.clear();
        first_.clear();
        last_.clear();
        for (size_t i = 0; i < microbatch.sequences.size(); ++i) {
            const SequenceId s = microbatch.sequences[i];
            const auto entries = std::span(microbatch.entries)
                                     .first(static_cast<size_t>(microbatch.begin[i + 1]))
                                     .subspan(static_cast<size_t>(microbatch.begin[i]));
            for (const uint32_t entry : entries) {
                const Position p = batch_->position(entry);
                write_rows_.push_back(row(s, p));
                last_.push_back(p + 1 - at(s).stored);
                first_.push_back(std::max(0, last_.back() - n_tokens_));
            }
            list_runs(s, batch_->position(entries.back()) + 1);
        }
        return {.write_rows = write_rows_,
                .runs = runs_,
                .run_begin = run_begin_,
                .first = first_,
                .last = last_};
    }

    bool can_end_at(SequenceId s, Position next) const override {
        return next <= at(s).begin || next >= at(s).end || at(s).stored == at(s).begin;
    }
    bool can_partial_remove() const override { return false; }
    bool can_remove(SequenceId s, PositionRange range) override {
        return !overlaps(s, range) || (range.end >= at(s).end && can_end_at(s, range.begin));
    }
    void remove(SequenceId s, PositionRange range) noexcept override {
        if (overlaps(s, range)) truncate(s, range.begin);
    }
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override {
        const bool copies = !overlaps(from, range) ||
                            (range.begin <= at(from).begin && can_end_at(from, range.end));
        const bool replaces =
            at(to).begin == at(to).end || (range.begin <= at(to).begin && range.end >= at(to).end);
        if (!copies || !replaces)
            throw UnsupportedError(text("sequence ", from, " cannot be copied to sequence ", to,
                                        ": the last tokens are not stored"));
        return reserve_fork(from, to);
    }
    size_t reserve_fork(SequenceId, SequenceId) override { return static_cast<size_t>(n_tokens_); }
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override {
        release(to);
        if (!overlaps(from, range)) return;
        at(to) = at(from);
        truncate(to, range.end);
        for (Position p = at(to).stored; p < at(to).end; ++p)
            moves.push_back({.group = group_, .from = row(from, p), .to = row(to, p)});
    }
    size_t check_reposition(SequenceId s, const Reposition& how) override {
        const bool whole = how.range.begin <= at(s).begin && how.range.end >= at(s).end;
        if (overlaps(s, how.range) && (how.divisor != 1 || !whole))
            throw UnsupportedError("only whole sequences can be shifted");
        return 0;
    }
    void reposition(SequenceId s, const Reposition& how, std::vector<RowMove>&) noexcept override {
        if (!overlaps(s, how.range)) return;
        for (Position* p : {&at(s).begin, &at(s).stored, &at(s).end}) *p += how.delta;
    }
    void release(SequenceId s) noexcept override { at(s) = {}; }

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override {
        PartState state;
        StateRows& found = rows.emplace_back();
        found.group = group_;
        for (const SequenceId s : sequences) {
            SequenceState& sequence = state.sequences.emplace_back();
            sequence.unstored = {at(s).begin, at(s).stored};
            for (const int32_t row : rows_of(s)) {
                sequence.items.push_back(state.n_items);
                found.items.push_back(state.n_items++);
                found.rows.push_back(row);
            }
        }
        return state;
    }
    std::optional<Position> end_of(const PartState& state, size_t sequence) const override {
        const SequenceState& s = state.sequences[sequence];
        return s.unstored.end + static_cast<Position>(s.items.size());
    }
    void check_restore(const PartState& state, std::span<const SequenceId>, bool,
                       std::vector<StateRows>& rows) override {
        int32_t n = 0;
        for (const SequenceState& s : state.sequences) {
            if (std::ssize(s.items) > n_tokens_)
                throw StateError(text("the state has ", s.items.size(),
                                      " last tokens, expected at most ", n_tokens_));
            for (const int32_t item : s.items)
                if (item != n++) throw StateError("the state has last tokens out of order");
        }
        StateRows& found = rows.emplace_back();
        found.group = group_;
        found.items.reserve(static_cast<size_t>(n));
        found.rows.reserve(static_cast<size_t>(n));
    }
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override {
        for (size_t i = 0; i < sequences.size(); ++i) {
            const SequenceState& saved = state.sequences[i];
            Position end = saved.unstored.end;
            for (const int32_t item : saved.items) {
                at(sequences[i]) = {saved.unstored.begin, saved.unstored.end, end + 1};
                rows[0].items.push_back(item);
                rows[0].rows.push_back(row(sequences[i], end++));
            }
        }
    }

private:
    struct Sequence {
        Position begin = 0;
        Position stored = 0;  // the keys of positions [stored, end) are stored
        Position end = 0;
    };

    Sequence& at(SequenceId s) { return sequences_[static_cast<size_t>(s)]; }
    const Sequence& at(SequenceId s) const { return sequences_[static_cast<size_t>(s)]; }
    int32_t row(SequenceId s, Position p) const {
        return s * ring_size_ + (p - at(s).begin) % ring_size_;
    }
    bool overlaps(SequenceId s, PositionRange range) const {
        return std::max(range.begin, at(s).begin) < std::min(range.end, at(s).end);
    }
    void truncate(SequenceId s, Position end) noexcept {
        at(s).end = std::min(at(s).end, end);
        if (at(s).end <= at(s).begin) release(s);
    }
    void list_runs(SequenceId s, Position end) {
        for (Position p = at(s).stored; p < end; ++p) {
            const bool starts = p == at(s).stored || row(s, p) != row(s, p - 1) + 1;
            if (starts) runs_.push_back({row(s, p), 0, p - at(s).stored, p - at(s).begin});
            ++runs_.back().count;
        }
        run_begin_.push_back(static_cast<int32_t>(runs_.size()));
    }

    uint8_t group_;
    int32_t n_tokens_;
    int32_t ring_size_;
    std::vector<Sequence> sequences_;
    std::vector<Sequence> before_;  // of the current step
    const PreparedBatch* batch_ = nullptr;
    std::span<const Microbatch> microbatches_;
    std::vector<Run> runs_;  // of the last view
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> write_rows_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
};

uint8_t add_slot(LayoutBuilder& builder, StorageId id, const StateSpec& slot) {
    const auto spec = slot.get<LastTokensSpec>();
    const Window window{WindowKind::sliding, spec.n_tokens};
    const int32_t n_rows = ring_size(window, builder.options()) * builder.options().n_seq_max;
    const uint8_t group = builder.find_group({
        .kind = &LastTokensSpec::kind(),
        .window = window,
        .needs_key_positions = false,
        .n_rows = static_cast<uint32_t>(n_rows),
        .max_runs = builder.max_runs(2),
    });
    builder.add_storage(id, group, DType::f32, 1, spec.width);
    return group;
}

constinit const PartKind kLastTokens{
    .name = "last tokens",
    .code = 255,
    .memory_name = "last tokens",
    .memory_name_with_cells = "attention and last tokens",
    .add_slot = add_slot,
    .storage_name = [](uint8_t) -> std::string { return "last tokens"; },
    .check =
        [](const MemoryLayout&, const MemoryOptions& options) {
            if (options.axes != 1) throw UnsupportedError("last tokens have one position each");
        },
    .add_parts =
        [](const MemoryLayout& layout, std::span<const uint8_t> groups,
           const MemoryOptions& options, Parts& parts) {
            for (const uint8_t group : groups)
                parts.add(
                    std::make_unique<LastTokensPart>(group, layout.groups[group].window, options),
                    {{group}});
        },
};

const PartKind& LastTokensSpec::kind() { return kLastTokens; }

constexpr uint8_t kAttention = 0;
constexpr SequenceId kSequences = 3;
constexpr int kBatch = 6;

// Layer 0 has attention and the last 4 tokens, layer 1 the last 2.
MemorySpecs specs() { return {{full_layer(), LastTokensSpec{4, 8}}, {LastTokensSpec{2, 16}}}; }

MemoryOptions options(bool streams) {
    MemoryOptions options = sized(64, kSequences, streams);
    options.n_batch = kBatch;
    return options;
}

// The plain model: the ids of all tokens, and per window the number of tokens that are not stored.
struct Model {
    std::vector<int> tokens;
    Position begin = 0;
    std::map<uint8_t, size_t> n_freed{{1, 0}, {2, 0}};  // by group

    void add(int token) { tokens.push_back(token); }
    void free_tokens() {
        for (auto& [group, n] : n_freed)
            n = std::max(n, tokens.size() - std::min(tokens.size(), window(group)));
    }
    static size_t window(uint8_t group) { return group == 1 ? 4 : 2; }
    Position end() const { return begin + static_cast<Position>(tokens.size()); }
    bool can_end_at(Position next) const {
        const bool all_stored = n_freed.at(1) == 0 && n_freed.at(2) == 0;
        return next <= begin || next >= end() || all_stored;
    }
    void truncate(Position next) {
        if (next <= begin) *this = {};
        if (next < end()) tokens.resize(static_cast<size_t>(next - begin));
    }
};

class NewKind : public testing::TestWithParam<bool> {
protected:
    void decode();
    void check_view(const Microbatch& microbatch, size_t index);
    void remove();
    void copy();
    void shift();
    void save_and_load();
    void rewind();
    void check();
    void check_unchanged(auto&& edit);

    SequenceId any_sequence() { return static_cast<SequenceId>(random() % kSequences); }
    Model& model(SequenceId s) { return models[static_cast<size_t>(s)]; }

    Driver driver{options(GetParam()), specs()};
    std::vector<Model> models = std::vector<Model>(kSequences);
    std::mt19937 random{5};
    int next_token = 0;
    std::map<std::string, int> outcomes;
};

// Decodes a batch of several sequences and commits it or rolls it back.
void NewKind::decode() {
    const auto before = models;
    Batch batch;
    for (size_t i = 1 + random() % kBatch; i > 0; --i) {
        const SequenceId s = any_sequence();
        if (model(s).tokens.size() == 40) continue;
        const Position start = model(s).tokens.empty() ? static_cast<Position>(random() % 3) : -1;
        if (start >= 0) model(s).begin = start;
        const Position p = start >= 0 ? start : kNextPosition;
        model(s).add(next_token);
        batch.add(next_token++, std::span(&p, 1), std::span(&s, 1), false);
    }
    if (batch.size() == 0) return;
    const auto microbatches = driver.place(batch);
    for (size_t i = 0; i < microbatches.size(); ++i) {
        driver.write(microbatches[i], i);
        check_view(microbatches[i], i);
    }
    const bool commits = random() % 4 != 0;
    ++outcomes[commits ? "commit" : "rollback"];
    if (!commits) {
        driver.memory->rollback();
        models = before;
        return;
    }
    driver.memory->commit();
    for (Model& m : models) m.free_tokens();
}

// Each token sees the last tokens of its sequence up to itself.
void NewKind::check_view(const Microbatch& microbatch, size_t index) {
    for (const uint8_t group : {1, 2}) {
        const GroupView view = driver.memory->view(group, index);
        for (size_t q = 0; q < microbatch.sequences.size(); ++q) {
            std::vector<int> keys;
            ASSERT_LE(view.run_begin[q + 1] - view.run_begin[q], 2);
            for (int32_t r = view.run_begin[q]; r < view.run_begin[q + 1]; ++r)
                for (int32_t i = 0; i < view.runs[static_cast<size_t>(r)].count; ++i)
                    keys.push_back(driver.keys[group][static_cast<size_t>(
                        view.runs[static_cast<size_t>(r)].row + i)]);
            const Model& m = model(microbatch.sequences[q]);
            for (int32_t t = microbatch.begin[q]; t < microbatch.begin[q + 1]; ++t) {
                const auto i = static_cast<size_t>(t);
                const std::vector<int> seen(keys.begin() + view.first[i],
                                            keys.begin() + view.last[i]);
                const int token = driver.prepared.source.tokens[microbatch.entries[i]];
                const auto end = std::ranges::find(m.tokens, token) + 1;
                const auto n = std::min(end - m.tokens.begin(),
                                        static_cast<std::ptrdiff_t>(Model::window(group)));
                ASSERT_EQ(seen, std::vector<int>(end - n, end));
            }
        }
    }
}

void NewKind::check_unchanged(auto&& edit) {
    const auto rows = rows_of_all(*driver.memory);
    edit();
    EXPECT_EQ(rows_of_all(*driver.memory), rows);
    EXPECT_THAT(driver.moves, testing::IsEmpty());
}

void NewKind::remove() {
    const SequenceId s = any_sequence();
    const Position begin = random() % 2 == 0 ? 0 : static_cast<Position>(random() % 8);
    if (model(s).can_end_at(begin)) {
        ++outcomes["remove"];
        EXPECT_TRUE(driver.memory->remove(s, {begin, INT32_MAX}));
        model(s).truncate(begin);
    } else {
        ++outcomes["no remove"];
        check_unchanged([&] { EXPECT_FALSE(driver.memory->remove(s, {begin, INT32_MAX})); });
    }
}

void NewKind::copy() {
    const SequenceId from = any_sequence();
    const SequenceId to = (from + 1) % kSequences;
    PositionRange range;
    if (random() % 2 == 0) range.end = std::max(0, model(from).end() - 1);
    const bool fits = model(to).tokens.empty() || range.end >= model(to).end();
    if (!fits || !model(from).can_end_at(range.end)) {
        ++outcomes["no copy"];
        check_unchanged([&] {
            EXPECT_THROW(driver.memory->copy(from, to, range, driver.moves), UnsupportedError);
        });
        return;
    }
    ++outcomes["copy"];
    expect_all_or_nothing(driver, [&] { driver.memory->copy(from, to, range, driver.moves); });
    model(to) = model(from);
    model(to).truncate(range.end);
}

void NewKind::shift() {
    const SequenceId s = any_sequence();
    if (model(s).tokens.empty()) return;
    driver.memory->add(s, {}, 2, driver.moves);
    driver.carry_out_moves();
    driver.apply_shifts();
    model(s).begin += 2;
    if (model(s).tokens.size() < 2) return;
    ++outcomes["shift"];
    check_unchanged([&] {
        EXPECT_THROW(driver.memory->add(s, {model(s).end() - 1, INT32_MAX}, 1, driver.moves),
                     UnsupportedError);
    });
}

// Restores everything in another memory, or one sequence in place of another.
void NewKind::save_and_load() {
    std::optional<SequenceId> saved, to;
    if (random() % 2 == 0) saved = any_sequence(), to = any_sequence();
    std::map<std::pair<uint8_t, int32_t>, std::pair<int, Position>> bytes;
    std::vector<StateRows> rows;
    const MemoryState state = driver.memory->describe(saved, rows);
    for (const StateRows& group : rows)
        for (size_t i = 0; i < group.items.size(); ++i) {
            const auto row = static_cast<size_t>(group.rows[i]);
            bytes[{group.group, group.items[i]}] = {driver.keys[group.group][row],
                                                    driver.rotations[group.group][row]};
        }
    if (!saved) driver = Driver(options(GetParam()), specs());
    if (saved) {
        MemoryState damaged = state;
        damaged.parts.back().sequences[0].items.push_back(7);
        check_unchanged(
            [&] { EXPECT_THROW(driver.memory->restore(damaged, to, rows), StateError); });
    }
    driver.memory->restore(state, to, rows);
    for (const StateRows& group : rows)
        for (size_t i = 0; i < group.items.size(); ++i) {
            const auto row = static_cast<size_t>(group.rows[i]);
            std::tie(driver.keys[group.group][row], driver.rotations[group.group][row]) =
                bytes.at({group.group, group.items[i]});
        }
    if (saved) model(*to) = Model(model(*saved));
    ++outcomes[saved ? "load one" : "load all"];
}

void NewKind::rewind() {
    const SequenceId s = any_sequence();
    const RewindPoint point = driver.memory->rewind_point(s, model(s).end() - 1);
    if (point.from == s) {
        EXPECT_TRUE(driver.memory->remove(s, {point.next, INT32_MAX}));
        model(s).truncate(point.next);
    } else {
        ++outcomes["rewind to a fork"];
        driver.memory->refork(point, s, driver.moves);
        model(s) = model(point.from);
        model(s).truncate(point.next);
    }
}

void NewKind::check() {
    driver.carry_out_moves();
    for (SequenceId s = 0; s < kSequences; ++s) {
        const Model& m = model(s);
        ASSERT_EQ(driver.tokens(s, kAttention), m.tokens);
        for (const auto& [group, n] : m.n_freed)
            ASSERT_EQ(driver.tokens(s, group),
                      std::vector<int>(m.tokens.begin() + static_cast<std::ptrdiff_t>(n),
                                       m.tokens.end()));
    }
}

TEST_P(NewKind, MatchesAPlainModelUnderRandomOperations) {
    for (int i = 0; i < 30000 && !HasFatalFailure(); ++i) {
        switch (random() % 8) {
        case 0: remove(); break;
        case 1: copy(); break;
        case 2: shift(); break;
        case 3: save_and_load(); break;
        case 4: rewind(); break;
        default: decode();
        }
        check();
    }
    for (const char* outcome : {"commit", "rollback", "remove", "no remove", "copy", "no copy",
                                "shift", "load one", "load all", "rewind to a fork"})
        EXPECT_GT(outcomes[outcome], 10) << outcome;
}

TEST_P(NewKind, ItsPropertiesApply) {
    EXPECT_EQ(kind_of(driver), "attention and last tokens");
    const MemoryLayout& layout = driver.memory->layout();
    EXPECT_EQ(layout.groups.size(), 3u);
    EXPECT_EQ(layout.storage_name(layout.at({1, 0, 0})), "last tokens of layer 1");
    EXPECT_EQ(driver.memory->n_streams(), GetParam() ? kSequences : 1)
        << "cells are those of attention";
    MemoryOptions axes = options(GetParam());
    axes.axes = 4;
    EXPECT_THROW(make_memory(specs(), axes), UnsupportedError);
    EXPECT_EQ(kind_of(Driver(options(GetParam()), {{LastTokensSpec{3, 4}}})), "last tokens");
}

INSTANTIATE_TEST_SUITE_P(Memory, NewKind, testing::Bool(),
                         [](const auto& streams) { return streams.param ? "streams" : "unified"; });

}  // namespace
}  // namespace plait::new_kind_test
