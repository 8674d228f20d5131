// The step loop, tested through Context and with a fake memory.
#include "runtime/step/step_runner.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/backend.h"
#include "runtime/context.h"
#include "support/stop_after.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::StopAfter;

Batch batch_of(const std::vector<TokenId>& tokens, SequenceId sequence, Position first, bool all) {
    Batch batch;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const Position position = first + static_cast<Position>(i);
        batch.add(tokens[i], std::span(&position, 1), std::span(&sequence, 1),
                  all || i + 1 == tokens.size());
    }
    return batch;
}

std::vector<TokenId> some_tokens(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> tokens(n);
    for (TokenId& t : tokens) t = static_cast<TokenId>(random() % 80);
    return tokens;
}

ContextOptions two_threads() {
    ContextOptions options;
    options.n_ctx = 64;
    options.n_seq_max = 4;
    options.threads = 2;
    return options;
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

// Stores one contiguous row per token of sequence 0 and counts the calls of its functions.
class FakeMemory final : public StepMemory, public SequenceIndex {
public:
    explicit FakeMemory(MemoryLayout layout) : layout_(std::move(layout)) {}

    const MemoryLayout& layout() const override { return layout_; }
    const SequenceIndex& sequences(StepKind) const override { return *this; }
    std::optional<PositionBounds> positions(SequenceId) const override {
        if (committed_ == 0) return std::nullopt;
        return PositionBounds{0, committed_ - 1};
    }
    bool same_content(std::span<const SequenceId>) const override { return false; }

    void place(StepKind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override {
        ++n_placed;
        placed_ = committed_;
        starts_.clear();
        for (const Microbatch& microbatch : microbatches) {
            starts_.push_back(placed_);
            placed_ += static_cast<int32_t>(microbatch.n_tokens());
        }
        EXPECT_EQ(static_cast<size_t>(placed_ - committed_), batch.size());
    }
    GroupView view(uint8_t, size_t microbatch) override {
        const int32_t begin = starts_[microbatch];
        const int32_t end = microbatch + 1 < starts_.size() ? starts_[microbatch + 1] : placed_;
        rows_.clear(), first_.clear(), last_.clear();
        for (int32_t i = begin; i < end; ++i) {
            rows_.push_back(i + 3);  // a row is not a position
            first_.push_back(0);
            last_.push_back(i + 1);
        }
        runs_ = {{.row = 3, .count = placed_, .first_key = 0, .ordinal = 0}};
        run_begin_ = {0, 1};
        return {.write_rows = rows_,
                .runs = runs_,
                .run_begin = run_begin_,
                .first = first_,
                .last = last_};
    }
    void commit() noexcept override { ++n_committed, committed_ = placed_; }
    void rollback() noexcept override { ++n_rolled_back; }
    bool has_shifts() const override { return false; }
    void take_shifts(std::vector<KeyShift>&) override {}

    int n_placed = 0, n_committed = 0, n_rolled_back = 0;

private:
    MemoryLayout layout_;
    int32_t committed_ = 0, placed_ = 0;
    std::vector<int32_t> starts_, rows_, first_, last_, run_begin_;
    std::vector<Run> runs_;
};

struct FakeRunner {
    std::shared_ptr<const LoadedModel> model = test::TinyModel{}.open();
    MemoryLayout layout = [&] {
        MemoryOptions options;
        options.n_ctx = 64;
        return make_memory(model->model().memory_specs(), options)->layout();
    }();
    Engine engine{
        model, std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{2, std::nullopt}), layout,
        EngineLimits{.n_tokens = 8, .n_sequences = 1, .n_rows = 64, .build = {.n_ctx = 64}}};
    Recorder recorder;
    FakeMemory memory{layout};
    Storage storage{layout, engine.device_set()};
    std::unique_ptr<StepRunner> runner = [&] {
        StepOptions options;
        options.limits = {.n_vocab = 80, .width = 64, .n_batch = 32, .n_seq_max = 1};
        options.split.max_tokens = 8;
        return std::make_unique<StepRunner>(model->info(), memory, storage, engine, recorder,
                                            options);
    }();
};

TEST(StepRunner, UsesTheMemoryInterfaceOnly) {  // S4-06, S4-07, S2-38
    FakeRunner fake;
    const std::vector<TokenId> tokens = some_tokens(20, 3);
    const Outputs got = fake.runner->run(batch_of(tokens, 0, 0, true).view(), nullptr);

    Context context(fake.model, two_threads());
    const Outputs expected = context.session()->decode(batch_of(tokens, 0, 0, true).view());
    EXPECT_EQ(copy(got.logits()), copy(expected.logits()));
    EXPECT_EQ(fake.memory.n_placed, 1);
    EXPECT_EQ(fake.memory.n_committed, 1);
    EXPECT_EQ(fake.memory.n_rolled_back, 0);
    // Microbatches of 8, 8 and 4 tokens: plans are reused with an unknown kind of memory.  S1-11
    fake.runner->run(batch_of(tokens, 0, 20, true).view(), nullptr);
    EXPECT_EQ(fake.engine.stats().plans_built, 1u);
    EXPECT_EQ(fake.engine.stats().plans_reused, 5u);
}

TEST(StepRunner, InterruptedRunIsRolledBackAndNotCommitted) {  // S4-08
    FakeRunner fake;
    const Batch batch = batch_of(some_tokens(20, 3), 0, 0, true);
    int stopped = 0;
    for (int after = 0; after < 400; after += 7) {
        StopAfter stop(after);
        try {
            fake.runner->run(batch.view(), &stop);
            break;
        } catch (const Interrupted&) {
            ++stopped;
        }
        EXPECT_EQ(fake.memory.n_rolled_back, stopped);
        EXPECT_EQ(fake.memory.n_committed, 0);
    }
    EXPECT_GT(stopped, 3);
    EXPECT_EQ(fake.memory.n_committed, 1);
}

TEST(StepRunner, RejectedBatchPlacesNothing) {
    FakeRunner fake;
    EXPECT_THROW(fake.runner->run(batch_of({200}, 0, 0, true).view(), nullptr), BatchError);
    EXPECT_THROW(fake.runner->run(batch_of({1}, 3, 0, true).view(), nullptr), BatchError);
    EXPECT_EQ(fake.memory.n_placed, 0);
}

TEST(Context, StepOfAKnownShapeBuildsNoPlan) {  // S0-01, S0-02, S1-07
    Context context(test::TinyModel{}.open(), two_threads());
    for (const size_t n : {1u, 2u, 3u, 7u, 8u, 20u}) {
        context.session()->clear();
        context.session()->decode(batch_of(some_tokens(n, 1), 0, 0, false).view());
        const uint64_t built = context.stats().plans_built;
        context.session()->clear();
        context.session()->decode(batch_of(some_tokens(n, 2), 0, 0, false).view());
        EXPECT_EQ(context.stats().plans_built, built) << n;
    }
}

TEST(Context, SplittingAPromptDoesNotChangeTheBits) {
    const auto model = test::TinyModel{}.open();
    const std::vector<TokenId> tokens = some_tokens(40, 5);
    Context whole(model, two_threads());
    const Outputs expected = whole.session()->decode(batch_of(tokens, 0, 0, true).view());
    for (const size_t step : {1u, 3u, 7u, 16u}) {
        Context microbatches(model, two_threads());
        std::vector<float> got;
        for (size_t at = 0; at < tokens.size(); at += step) {
            const size_t n = std::min(step, tokens.size() - at);
            const std::vector<TokenId> part(tokens.begin() + static_cast<long>(at),
                                            tokens.begin() + static_cast<long>(at + n));
            const Outputs out = microbatches.session()->decode(
                batch_of(part, 0, static_cast<Position>(at), true).view());
            got.insert(got.end(), out.logits().begin(), out.logits().end());
        }
        EXPECT_EQ(got, copy(expected.logits())) << step;
    }
}

TEST(Context, EncodeEqualsDecodeAndStoresNothing) {
    Context context(test::TinyModel{}.open(), two_threads());
    const Batch batch = batch_of(some_tokens(12, 5), 0, 0, true);
    const Outputs encoded = context.session()->encode(batch.view());
    EXPECT_EQ(context.session()->memory().n_used(), 0);
    const Outputs decoded = context.session()->decode(batch.view());
    EXPECT_EQ(copy(encoded.logits()), copy(decoded.logits()));
    EXPECT_EQ(context.session()->memory().n_used(), 12);
    EXPECT_EQ(copy(context.session()->encode(batch.view()).logits()), copy(encoded.logits()));
    EXPECT_EQ(context.session()->memory().n_used(), 12);
}

TEST(Context, CacheFullReportsNeededCellsAndChangesNothing) {
    ContextOptions options = two_threads();
    options.n_ctx = 16;
    options.n_seq_max = 1;
    Context context(test::TinyModel{}.open(), options);
    context.session()->decode(batch_of(some_tokens(10, 1), 0, 0, false).view());
    try {
        context.session()->decode(batch_of(some_tokens(7, 1), 0, 10, false).view());
        FAIL() << "17 tokens fitted into 16 cells";
    } catch (const CacheFull& full) {
        EXPECT_EQ(full.needed, 7);
        EXPECT_EQ(full.free, 6);
    }
    EXPECT_EQ(context.session()->memory().n_used(), 10);
    context.session()->decode(batch_of(some_tokens(6, 1), 0, 10, false).view());
    EXPECT_EQ(context.session()->memory().n_used(), 16);
}

TEST(Context, OutputsAreUnaffectedByLaterCalls) {
    auto context = std::make_unique<Context>(test::TinyModel{}.open(), two_threads());
    const Outputs kept = context->session()->decode(batch_of(some_tokens(5, 1), 0, 0, true).view());
    const std::vector<float> before = copy(kept.logits());
    for (Position p = 5; p < 60; ++p) context->session()->decode(batch_of({1}, 0, p, true).view());
    EXPECT_EQ(copy(kept.logits()), before);
    context.reset();
    EXPECT_EQ(copy(kept.logits()), before);
}

TEST(OutputPool, KeptBuffersAreAllocatedOnce) {
    OutputPool pool;
    std::vector<OutputHandle> kept;
    for (int i = 0; i < 3; ++i) kept.push_back(pool.take(1000));
    for (int i = 0; i < 100; ++i) {
        kept[static_cast<size_t>(i % 3)] = OutputHandle();
        kept[static_cast<size_t>(i % 3)] = pool.take(1000 + static_cast<uint64_t>(i));
    }
    EXPECT_EQ(pool.n_allocated(), 3u);
}

TEST(OutputPool, HandlesOutliveThePool) {
    OutputHandle handle;
    {
        OutputPool pool;
        handle = pool.take(64);
    }
    handle.data()[63] = std::byte{7};
    EXPECT_EQ(handle.data()[63], std::byte{7});
}

}  // namespace
}  // namespace plait
