// Keys and values that a caller reads and replaces.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "runtime/context.h"
#include "support/bytes_of.h"
#include "support/odd_values.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::Bytes;
using test::bytes_of;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr size_t kHeads = 2, kHeadDim = 16;  // those of the tiny llama

ContextOptions three_sequences() {
    ContextOptions options;
    options.n_ctx = 64;
    options.n_seq_max = 3;
    options.threads = 1;
    return options;
}

void feed(Context& context, SequenceId sequence, int n) {
    Batch batch;
    for (int i = 0; i < n; ++i) batch.add(i + 1, {}, std::span(&sequence, 1), false);
    context.session()->decode(batch.view());
}

// Rows of the tiny llama for `n` positions; every element of the i-th is `first + i`.
struct Rows {
    explicit Rows(size_t n, float first = 1.0f)
        : shape{static_cast<int64_t>(n), kHeads, kHeadDim}, values(n * kHeads * kHeadDim) {
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = first + static_cast<float>(i / (kHeads * kHeadDim));
    }
    GivenRows given() const { return {values, shape}; }

    std::vector<int64_t> shape;
    std::vector<float> values;
};

struct SessionRows : testing::Test {
    Context context{test::TinyModel{}.open(), three_sequences()};

    SessionRows() {
        feed(context, 0, 8);
        context.session()->seq_cp(0, 1, {});
    }
    void write(SequenceId sequence, std::vector<Position> positions,
               const std::optional<GivenRows>& keys, const std::optional<GivenRows>& values = {}) {
        context.session()->write(1, sequence, positions, keys, values);
    }
    template <typename Error>
    void expect_refused(auto&& call, const char* why) {
        const Bytes before = bytes_of(context);
        EXPECT_THAT(call, ThrowsMessage<Error>(HasSubstr(why)));
        EXPECT_TRUE(bytes_of(context) == before) << why;
    }
};

TEST_F(SessionRows, PositionsInAnyOrderAreReplaced) {
    const auto keys_before = context.session()->keys(1, 0).values;
    const auto values_before = context.session()->values(1, 0).values;
    write(0, {6, 2, 3}, Rows(3).given(), Rows(3, 10.0f).given());
    const auto element = [](const std::vector<float>& rows, size_t row) {
        return rows[row * kHeads * kHeadDim + 5];
    };
    const auto keys = context.session()->keys(1, 0).values;
    const auto values = context.session()->values(1, 0).values;
    for (const size_t row : {0, 1, 4, 5, 7}) {
        EXPECT_EQ(element(keys, row), element(keys_before, row)) << row;
        EXPECT_EQ(element(values, row), element(values_before, row)) << row;
    }
    EXPECT_EQ(element(keys, 6), 1.0f);
    EXPECT_EQ(element(keys, 2), 2.0f);
    EXPECT_EQ(element(keys, 3), 3.0f);
    EXPECT_EQ(element(values, 3), 12.0f);
    EXPECT_EQ(context.session()->keys(1, 1).values, keys_before) << "a copy keeps its rows";
    EXPECT_EQ(context.session()->keys(0, 0).values.size(), keys.size()) << "of another layer";
}

TEST_F(SessionRows, OneOfBothSuffices) {
    const auto keys_before = context.session()->keys(1, 0).values;
    write(0, {1}, {}, Rows(1).given());
    EXPECT_EQ(context.session()->keys(1, 0).values, keys_before);
    EXPECT_EQ(context.session()->values(1, 0).values[kHeads * kHeadDim], 1.0f);
    const Bytes before = bytes_of(context);
    write(0, {}, Rows(0).given());
    EXPECT_TRUE(bytes_of(context) == before) << "no position, no change";
}

TEST_F(SessionRows, WhatIsWrongChangesNothing) {
    expect_refused<InvalidArgument>([&] { write(0, {1}, {}); }, "expected at least one of them");
    expect_refused<InvalidArgument>(
        [&] {
            write(0, {1, 2}, Rows(1).given());
        },
        "keys: expected shape (2, 2, 16), got (1, 2, 16)");
    Rows flat(1);
    flat.shape = {32};
    expect_refused<InvalidArgument>([&] { write(0, {1}, {}, flat.given()); },
                                    "values: expected shape (1, 2, 16), got (32,)");
    expect_refused<InvalidArgument>([&] { write(0, {9}, Rows(1).given()); },
                                    "has no position 9 in layer 1; it stores 8 positions between");
    expect_refused<InvalidArgument>([&] { write(2, {0}, Rows(1).given()); },
                                    "which stores no position of the sequence");
    expect_refused<InvalidArgument>(
        [&] {
            write(0, {4, 1, 4}, Rows(3).given());
        },
        "position 4 is given twice");
    Rows wrong(2);
    wrong.values.back() = kInf;
    expect_refused<InvalidArgument>(
        [&] {
            write(0, {1, 2}, wrong.given());
        },
        "keys: row 1 has the element inf, expected finite numbers");
    wrong.values.back() = -1e6f;
    expect_refused<InvalidArgument>(
        [&] {
            write(0, {1, 2}, {}, wrong.given());
        },
        "which a cache of type F16 cannot store");
    for (const int layer : {-1, 2})
        expect_refused<OutOfRange>([&] { context.session()->keys(layer, 0); },
                                   "does not exist: expected 0 to 1");
    context.session()->seq_div(1, {}, 2);
    expect_refused<InvalidArgument>([&] { write(1, {3}, Rows(1).given()); },
                                    "has 2 tokens at position 3, expected one");
}

TEST_F(SessionRows, ATransactionTakesBackWhatWasWritten) {
    const auto before = context.session()->keys(1, 0).values;
    context.session()->begin_transaction();
    write(0, {0, 5}, Rows(2).given());
    context.session()->roll_back_transaction([](SequenceId) { return false; });
    EXPECT_EQ(context.session()->keys(1, 0).values, before);
}

// A context of a model of the reference data; null where there is none.
std::unique_ptr<Context> reference_context(const char* model) {
    const char* data = std::getenv("PLAIT_TEST_DATA");
    const auto path =
        std::filesystem::path(data ? data : "") / "conformance" / model / "model.gguf";
    if (!std::filesystem::exists(path)) return nullptr;
    return std::make_unique<Context>(LoadedModel::open(path.string(), {}), three_sequences());
}

TEST(SessionRowsOf, RecurrentLayersHaveNone) {
    const auto context = reference_context("mamba");
    if (!context) GTEST_SKIP() << "no reference data: set PLAIT_TEST_DATA to its directory";
    feed(*context, 0, 3);
    EXPECT_THAT([&] { context->session()->keys(0, 0); },
                ThrowsMessage<UnsupportedError>(HasSubstr("it has a state, but no keys")));
}

TEST(SessionRowsOf, EncodersHaveNone) {
    const auto context = reference_context("bert");
    if (!context) GTEST_SKIP() << "no reference data: set PLAIT_TEST_DATA to its directory";
    EXPECT_THAT([&] { context->session()->values(0, 0); },
                ThrowsMessage<UnsupportedError>(HasSubstr("layer 0 has no keys and values")));
}

TEST(SessionRowsOf, LatentLayersHaveNoSeparateValues) {
    const auto context = reference_context("deepseek2");
    if (!context) GTEST_SKIP() << "no reference data: set PLAIT_TEST_DATA to its directory";
    feed(*context, 0, 3);
    const SequenceRows values = context->session()->values(0, 0);
    const std::vector<Position> positions{0, 1, 2};
    EXPECT_THAT(
        [&] {
            context->session()->write(
                0, 0, positions, {},
                GivenRows{values.values, {values.n, values.n_heads, values.head_dim}});
        },
        ThrowsMessage<UnsupportedError>(HasSubstr("write keys instead")));
}

}  // namespace
}  // namespace plait
