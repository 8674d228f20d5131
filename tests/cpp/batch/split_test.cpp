#include "batch/split.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "fake_sequences.h"

namespace plait {
namespace {

using testing::ElementsAre;

struct Entry {
    std::vector<SequenceId> sequences;
    bool want = false;
};

PreparedBatch prepared(const Batch& batch, int32_t n_seq_max) {
    PreparedBatch out;
    BatchLimits limits;
    limits.n_vocab = 1;
    limits.n_batch = 4096;
    limits.n_seq_max = n_seq_max;
    prepare(batch.view(), limits, FakeSequences(), out);
    return out;
}

Batch make_batch(const std::vector<Entry>& entries) {
    Batch batch;
    for (const Entry& e : entries) batch.add(0, {}, e.sequences, e.want);
    return batch;
}

std::vector<Entry> random_entries(std::mt19937& random, size_t n, int32_t n_seq_max) {
    std::vector<Entry> entries;
    // Coupled entries come first, since sequences that have diverged cannot be coupled again.
    const size_t coupled = random() % 3;
    for (size_t i = 0; i < n; ++i) {
        Entry e{{static_cast<SequenceId>(random() % static_cast<uint32_t>(n_seq_max))},
                random() % 2 == 0};
        if (i < coupled) {
            e.sequences.resize(static_cast<size_t>(n_seq_max));
            std::iota(e.sequences.begin(), e.sequences.end(), 0);
            std::shuffle(e.sequences.begin(), e.sequences.end(), random);
        }
        entries.push_back(e);
    }
    return entries;
}

// Returns entries of which no two belong to different sequences of which some are the same.
std::vector<Entry> random_whole_entries(std::mt19937& random, size_t n) {
    const std::vector<std::vector<SequenceId>> sets{{0}, {3, 1}, {2}, {4}};
    std::vector<Entry> entries;
    for (size_t i = 0; i < n; ++i)
        entries.push_back({sets[random() % sets.size()], random() % 2 == 0});
    return entries;
}

// Checks that each token is in one microbatch and that the arrays of microbatches are consistent.
void check_microbatches(const PreparedBatch& batch, std::span<const Microbatch> microbatches) {
    std::vector<int> seen(batch.size(), 0);
    std::map<SequenceId, uint32_t> last;  // entry of each sequence
    uint32_t n_outputs = 0;
    for (const Microbatch& microbatch : microbatches) {
        ASSERT_GT(microbatch.n_tokens(), 0u);
        ASSERT_EQ(microbatch.begin.size(), microbatch.sequences.size() + 1);
        EXPECT_EQ(microbatch.begin.front(), 0);
        EXPECT_EQ(microbatch.begin.back(), static_cast<int32_t>(microbatch.n_tokens()));
        for (size_t s = 0; s < microbatch.sequences.size(); ++s) {
            ASSERT_LT(microbatch.begin[s], microbatch.begin[s + 1]);
            for (int32_t i = microbatch.begin[s]; i < microbatch.begin[s + 1]; ++i) {
                const uint32_t entry = microbatch.entries[static_cast<size_t>(i)];
                ++seen[entry];
                EXPECT_EQ(batch.first_sequence(entry), microbatch.sequences[s]);
                for (const SequenceId id : batch.sequences_of(entry)) {
                    if (last.contains(id)) {
                        EXPECT_LT(last[id], entry);
                    }
                    last[id] = entry;
                }
            }
        }
        EXPECT_EQ(microbatch.first_output, n_outputs);
        n_outputs += microbatch.n_outputs();
        for (size_t o = 0; o < microbatch.output_tokens.size(); ++o) {
            const auto entry = microbatch.entries[static_cast<size_t>(microbatch.output_tokens[o])];
            EXPECT_NE(batch.source.wants[entry], 0);
            if (o > 0) {
                EXPECT_LT(microbatch.entries[static_cast<size_t>(microbatch.output_tokens[o - 1])],
                          entry);
            }
        }
    }
    EXPECT_EQ(n_outputs, batch.n_outputs);
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST(Split, CoversEveryTokenOnceAndKeepsTheOrderInEachSequence) {  // # S2-42 # S4-09
    std::mt19937 random(1);
    Split split;
    for (int round = 0; round < 500; ++round) {
        const Batch batch = make_batch(random_entries(random, 1 + random() % 60, 6));
        const PreparedBatch p = prepared(batch, 6);
        for (const uint32_t max_tokens : {1u, 7u, 64u}) {
            const auto microbatches = split.cut(p, {.max_tokens = max_tokens});
            check_microbatches(p, microbatches);
            EXPECT_EQ(microbatches.size(), (p.size() + max_tokens - 1) / max_tokens);
            // Microbatches and their outputs are in batch order.
            uint32_t begin = 0;
            for (const Microbatch& microbatch : microbatches) {
                EXPECT_EQ(*std::ranges::min_element(microbatch.entries), begin);
                begin += microbatch.n_tokens();
                EXPECT_EQ(*std::ranges::max_element(microbatch.entries), begin - 1);
            }
        }
        const Batch whole = make_batch(random_whole_entries(random, 1 + random() % 60));
        const PreparedBatch w = prepared(whole, 5);
        check_microbatches(w, split.cut(w, {.max_tokens = 7, .whole_sequences = true}));
    }
}

// # S2-53 # S2-54 # S2-55
TEST(Split, TheOrderOfSequencesDoesNotChangeTheNumberOfMicrobatches) {
    std::mt19937 random(2);
    std::vector<SequenceId> order(16);
    std::iota(order.begin(), order.end(), 0);
    Split split;
    for (int round = 0; round < 50; ++round) {
        Batch batch;
        for (const SequenceId s : order) batch.add(0, {}, std::span(&s, 1), true);
        const PreparedBatch p = prepared(batch, 16);
        const auto microbatches = split.cut(p, {.max_tokens = 16});
        ASSERT_EQ(microbatches.size(), 1u);
        EXPECT_EQ(microbatches[0].sequences, order);
        std::shuffle(order.begin(), order.end(), random);
    }
}

TEST(Split, InterleavedSequencesAreGroupedAndOutputsKeepBatchOrder) {  // # S2-56
    const Batch batch = make_batch({{{3}, true}, {{1}, true}, {{3}, false}, {{1}, true}});
    const PreparedBatch p = prepared(batch, 4);
    Split split;
    const auto microbatches = split.cut(p, {.max_tokens = 8});
    ASSERT_EQ(microbatches.size(), 1u);
    EXPECT_THAT(microbatches[0].entries, ElementsAre(0, 2, 1, 3));
    EXPECT_THAT(microbatches[0].sequences, ElementsAre(3, 1));
    EXPECT_THAT(microbatches[0].begin, ElementsAre(0, 2, 4));
    EXPECT_THAT(microbatches[0].output_tokens, ElementsAre(0, 2, 3));
}

TEST(Split, WholeSequencesAreNeverSplit) {
    std::mt19937 random(3);
    Split split;
    for (int round = 0; round < 300; ++round) {
        const Batch batch = make_batch(random_whole_entries(random, 1 + random() % 40));
        const PreparedBatch p = prepared(batch, 5);
        const auto max_tokens = static_cast<uint32_t>(1 + random() % 20);
        std::map<SequenceId, int> n_microbatches_of;
        for (const Microbatch& microbatch :
             split.cut(p, {.max_tokens = max_tokens, .whole_sequences = true})) {
            for (const SequenceId s : microbatch.sequences) ++n_microbatches_of[s];
            EXPECT_TRUE(microbatch.n_tokens() <= max_tokens || microbatch.n_sequences() == 1);
        }
        for (const auto& [s, n] : n_microbatches_of) EXPECT_EQ(n, 1) << "sequence " << s;
    }
}

TEST(Split, WholeSequencesShareAllTokensOrNone) {
    Split split;
    const SplitPolicy whole{.max_tokens = 8, .whole_sequences = true};
    for (const std::vector<Entry>& entries :
         {std::vector<Entry>{{{0, 1}}, {{0}}}, {{{0, 1}}, {{2}}, {{1}}}}) {
        const Batch batch = make_batch(entries);
        const PreparedBatch p = prepared(batch, 3);
        EXPECT_THROW(split.cut(p, whole), BatchError);
        EXPECT_EQ(split.cut(p, {.max_tokens = 8}).size(), 1u);
    }
    const Batch batch = make_batch({{{0, 1}}, {{2}}, {{1, 0}}});
    EXPECT_EQ(split.cut(prepared(batch, 3), whole).size(), 1u);
}

TEST(Split, CouplingChangesOnlyBetweenMicrobatches) {
    std::mt19937 random(11);
    Split split;
    for (int round = 0; round < 200; ++round) {
        const Batch batch = make_batch(random_entries(random, 1 + random() % 40, 5));
        const PreparedBatch p = prepared(batch, 5);
        const auto microbatches = split.cut(p, {.max_tokens = 8, .constant_coupling = true});
        check_microbatches(p, microbatches);
        for (const Microbatch& microbatch : microbatches) {
            std::map<SequenceId, std::vector<SequenceId>> coupled_with;
            for (const uint32_t entry : microbatch.entries) {
                const auto ids = p.sequences_of(entry);
                for (const SequenceId s : ids) {
                    const std::vector<SequenceId> now(ids.begin(), ids.end());
                    EXPECT_EQ(coupled_with.try_emplace(s, now).first->second, now);
                }
            }
        }
    }
    // The coupling never changes, so one microbatch suffices.
    const Batch batch = make_batch({{{0, 1}}, {{2}}, {{0, 1}}, {{3, 4}}, {{2}}, {{0, 1}}});
    EXPECT_EQ(split.cut(prepared(batch, 5), {.max_tokens = 8, .constant_coupling = true}).size(),
              1u);
}

TEST(Split, WholeSequencesShareAMicrobatchIfTheyFit) {
    const Batch batch = make_batch({{{0}}, {{1}}, {{0}}, {{2}}, {{1}}, {{3}}, {{2}}, {{2}}, {{2}}});
    const PreparedBatch p = prepared(batch, 4);
    Split split;
    const auto microbatches = split.cut(p, {.max_tokens = 4, .whole_sequences = true});
    ASSERT_EQ(microbatches.size(), 3u);
    EXPECT_THAT(microbatches[0].entries, ElementsAre(0, 2, 1, 4));
    EXPECT_THAT(microbatches[1].entries, ElementsAre(3, 6, 7, 8));
    EXPECT_THAT(microbatches[2].entries, ElementsAre(5));
}

}  // namespace
}  // namespace plait
