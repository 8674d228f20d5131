// Saved states of contexts, and the unchanged memory after faults.
#include <gmock/gmock.h>

#include <new>
#include <random>

#include "base/error.h"
#include "memory/allocations.h"
#include "runtime/context.h"
#include "runtime/state/state_bytes.h"
#include "runtime/state/state_transfer.h"
#include "support/bytes_of.h"
#include "support/stop_after.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::Bytes;
using test::bytes_of;
using test::StopAfter;

ContextOptions short_microbatches() {
    ContextOptions options;
    options.n_ctx = 64;
    options.n_seq_max = 4;
    options.n_ubatch = 8;
    options.threads = 1;
    return options;
}

Batch some_batch(SequenceId sequence, size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    Batch batch;
    for (size_t i = 0; i < n; ++i)
        batch.add(static_cast<TokenId>(random() % 80), {}, std::span(&sequence, 1), i + 1 == n);
    return batch;
}

void feed(Context& context, SequenceId sequence, size_t n, uint32_t seed) {
    context.session()->decode(some_batch(sequence, n, seed).view());
}

struct Faults : testing::Test {
    std::shared_ptr<const LoadedModel> model = test::TinyModel{}.open();
    Context context{model, short_microbatches()};
    Faults() {
        feed(context, 0, 20, 1);
        feed(context, 1, 9, 2);
        context.session()->seq_cp(0, 2, {.end = 12});
    }
    // Lets the n-th allocation of `call` fail for n = 0, 1, ... until `call` succeeds. Checks that
    // each failure leaves the state unchanged.
    template <typename Call>
    void fail_each_allocation(Call call) {
        const Bytes before = bytes_of(context);
        int refused = 0;
        for (int64_t n = 0;; ++n) {
            ASSERT_LT(n, 100'000);
            try {
                const FailingAllocation failing(n);
                call();
                break;
            } catch (const std::bad_alloc&) {
                ++refused;
            }
            ASSERT_TRUE(bytes_of(context) == before) << "after allocation " << n << " failed";
        }
        EXPECT_GT(refused, 0);
        RecordProperty("goal", "G19");
        RecordProperty("figure",
                       std::to_string(refused) + " std::bad_alloc in C++, 0 states changed");
    }
};

TEST_F(Faults, InterruptedDecodeLeavesStateUnchanged) {  // S4-08
    Batch batch = some_batch(0, 20, 5);
    const SequenceId one = 1;
    for (const TokenId t : {3, 4, 5}) batch.add(t, {}, std::span(&one, 1), true);
    const Bytes before = bytes_of(context);
    int stopped = 0;
    for (int after = 0;; after += 2) {
        StopAfter stop(after);
        try {
            context.session()->decode(batch.view(), &stop);
            break;
        } catch (const Interrupted&) {
            ++stopped;
        }
        ASSERT_TRUE(bytes_of(context) == before) << after;
    }
    EXPECT_GT(stopped, 20);
    EXPECT_FALSE(bytes_of(context) == before);
}

// Valid checksums do not make a state consistent: these states contradict themselves.
TEST_F(Faults, InconsistentStatesAreRejected) {  // G6 S1
    const Bytes good = bytes_of(context);
    const StateReading read = read_state(good);
    std::vector<uint64_t> sizes;
    for (const auto& rows : read.rows) sizes.push_back(rows.size());
    const auto refused = [&](const MemoryState& memory, const std::vector<uint64_t>& row_bytes,
                             const char* why) {
        const StateImage image(read.facts, read.active, memory, row_bytes);
        Bytes bad(image.bytes());
        image.seal(bad);
        EXPECT_THAT([&] { context.session()->load_state(bad, {}); },
                    testing::ThrowsMessage<StateError>(testing::HasSubstr(why)));
        EXPECT_TRUE(bytes_of(context) == good);
    };
    MemoryState other = read.memory;
    other.parts.clear();
    refused(other, sizes, "has 0 parts, expected 1");
    std::vector<uint64_t> fewer = sizes;
    fewer.pop_back();
    refused(read.memory, fewer, "has rows of");
    std::vector<uint64_t> longer = sizes;
    ++longer[0];
    refused(read.memory, longer, "does not match its number of tokens");
}

TEST(ActiveChanges, MismatchErrorListsBothSides) {
    const std::vector<ActiveChange> some = {{"LoRA a", 0.5f}, {"control vector", 1.0f}};
    check_active(some, some);
    EXPECT_THAT([&] { check_active(some, {}); },
                testing::ThrowsMessage<StateError>(
                    testing::AllOf(testing::HasSubstr("'LoRA a' scaled by 0.5, 'control vector'"),
                                   testing::HasSubstr("expected neither"))));
}

TEST_F(Faults, OutOfMemoryDuringDecodeLeavesStateUnchanged) {  // S4-08
    Batch batch = some_batch(1, 20, 5);
    const SequenceId fresh = 3;
    for (const TokenId t : {3, 4, 5}) batch.add(t, {}, std::span(&fresh, 1), true);  // a new plan
    fail_each_allocation([&] { context.session()->decode(batch.view()); });
}

TEST_F(Faults, OutOfMemoryDuringShiftLeavesStateUnchanged) {
    fail_each_allocation([&] { context.session()->seq_add(2, {.begin = 4}, 3); });
}

TEST_F(Faults, PendingShiftSurvivesOutOfMemory) {
    context.session()->seq_add(0, {.begin = 15}, 2);
    Context other(model, short_microbatches());
    feed(other, 0, 20, 1);
    feed(other, 1, 9, 2);
    other.session()->seq_cp(0, 2, {.end = 12});
    other.session()->seq_add(0, {.begin = 15}, 2);
    for (int64_t n = 0;; ++n) {
        try {
            const FailingAllocation failing(n);
            context.session()->keys(0, 0);
            break;
        } catch (const std::bad_alloc&) {
        }
    }
    EXPECT_TRUE(bytes_of(context) == bytes_of(other));
}

TEST_F(Faults, OutOfMemoryDuringLoadLeavesStateUnchanged) {
    Context other(model, short_microbatches());
    feed(other, 3, 30, 9);
    const Bytes whole = bytes_of(other);
    const Bytes one = bytes_of(other, 3);
    fail_each_allocation([&] { context.session()->load_state(one, 0); });
    fail_each_allocation([&] { context.session()->load_state(whole, {}); });
    EXPECT_TRUE(bytes_of(context) == whole);
    feed(other, 0, 7, 3);
    fail_each_allocation([&] { other.copy_state_to(context); });
    EXPECT_TRUE(bytes_of(context) == bytes_of(other));
}

TEST_F(Faults, OutOfMemoryDuringSaveLeavesStateUnchanged) {
    Bytes bytes(1 << 20);
    fail_each_allocation([&] {
        context.session()->save_state({}, [&](uint64_t n) { return std::span(bytes).first(n); });
    });
}

TEST_F(Faults, TheCallerMayForbidTheSequenceOfAState) {
    Context other(model, short_microbatches());
    feed(other, 3, 5, 9);
    const Bytes one = bytes_of(other, 3);
    const Bytes before = bytes_of(context);
    const auto forbid = [](SequenceId sequence) {
        EXPECT_EQ(sequence, 3);
        throw InvalidArgument("the sequence has a handle");
    };
    EXPECT_THROW(context.session()->load_state(one, {}, forbid), InvalidArgument);
    EXPECT_TRUE(bytes_of(context) == before);
    context.session()->load_state(bytes_of(other), {}, forbid);  // asks only for one sequence
    context.session()->load_state(one, 0, forbid);               // to an id of the caller's choice
    EXPECT_EQ(context.session()->keys(0, 0).n, 5);
}

// Loading either throws and changes nothing, or succeeds completely.
TEST(ContextState, DamageWithValidChecksumsIsRejectedOrLoadedCompletely) {
    const auto model = test::TinyModel{}.open();
    Context from(model, short_microbatches());
    feed(from, 0, 20, 1);
    feed(from, 1, 9, 2);
    from.session()->seq_cp(0, 2, {.end = 12});
    const Bytes good = bytes_of(from);
    uint32_t n_sections = 0;
    std::memcpy(&n_sections, good.data() + 12, sizeof n_sections);
    const size_t contents =
        state_head_bytes(n_sections) + section_bytes(good, 0) + section_bytes(good, 1);
    Context context(model, short_microbatches());
    feed(context, 3, 5, 3);
    Bytes held = bytes_of(context);
    std::mt19937 random(7);
    int refused = 0;
    constexpr int kRounds = 3000;
    for (int i = 0; i < kRounds; ++i) {
        Bytes bad = good;
        const size_t at = contents + random() % (section_bytes(good, 2) - 3);
        if (i % 2 == 0) {
            put(bad, at, static_cast<uint8_t>(random() % 40));
        } else {
            put(bad, at, static_cast<uint32_t>(random() >> random() % 32));
        }
        reseal(bad, n_sections);
        try {
            context.session()->load_state(bad, {});
            feed(context, 0, 3, 1);
            for (const SequenceId s : {0, 1, 2, 3}) context.session()->keys(0, s);
            held = bytes_of(context);
        } catch (const BatchError&) {  // no positions left
            held = bytes_of(context);
        } catch (const StateError&) {
            ++refused;
        } catch (const CacheFull&) {
            ++refused;
        }
        ASSERT_TRUE(bytes_of(context) == held) << i;
    }
    EXPECT_GT(refused, kRounds / 4);
    EXPECT_LT(refused, kRounds);
}

TEST(ContextState, RoundTripsThroughEveryCacheTypeAndVariant) {  // S4-10
    const auto model = test::TinyModel{.width = 80}.open();      // heads of 20, padded in blocks
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q5_1,
                             DType::q5_0, DType::q4_1, DType::q4_0, DType::iq4_nl}) {
        ContextOptions options = short_microbatches();
        options.type_k = type;
        options.type_v = type;
        Context from(model, options);
        feed(from, 0, 20, 1);
        feed(from, 2, 11, 2);
        from.session()->seq_cp(0, 1, {.end = 9});
        from.session()->seq_add(0, {.begin = 10}, 4);
        const Bytes saved = bytes_of(from);
        Context same(model, options);
        feed(same, 3, 30, 3);
        same.session()->load_state(saved, {});
        EXPECT_TRUE(bytes_of(same) == saved);
        options.kv = "streams";
        options.n_ctx = 40;
        Context streams(model, options);
        streams.session()->load_state(saved, {});
        for (const SequenceId s : {0, 1, 2})
            EXPECT_TRUE(bytes_of(streams, s) == bytes_of(from, s)) << s;
    }
}

}  // namespace
}  // namespace plait
