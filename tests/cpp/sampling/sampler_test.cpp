#include "sampling/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "base/error.h"
#include "support/odd_values.h"

namespace plait::sampling {
namespace {

using testing::ElementsAre;

std::vector<int32_t> sample(Sampler& sampler, const std::vector<float>& logits,
                            const std::vector<uint64_t>& keys) {
    std::vector<int32_t> tokens(keys.size());
    sampler.sample({.logits = logits, .keys = keys, .n_vocab = logits.size() / keys.size()}, 0,
                   tokens);
    return tokens;
}

TEST(Sampler, IsAllOrNothing) {
    Sampler sampler({}, {}, 1);
    const std::vector<float> rows{0, 0, 0, kNan};
    EXPECT_THROW(sample(sampler, rows, {4, 5}), InvalidArgument);
    EXPECT_EQ(sampler.history(4).step, 0u);
    EXPECT_TRUE(sampler.history(4).tokens.empty());
}

TEST(Sampler, ForcedTokensComeFirst) {
    Sampler sampler({TopK{1}}, {2, 0}, 1);
    const std::vector<float> row{1, 5, 2};
    std::vector<int32_t> drawn;
    for (int i = 0; i < 3; ++i) drawn.push_back(sample(sampler, row, {0}).front());
    EXPECT_THAT(drawn, ElementsAre(2, 0, 1));
    sampler.start(0, {});
    EXPECT_EQ(sample(sampler, row, {0}).front(), 2);
}

TEST(Sampler, StartKeepsTheRandomNumbersGoing) {
    Sampler sampler({}, {}, 1);
    const std::vector<float> row(1000, 0);
    const auto first = sample(sampler, row, {0});
    const std::vector<int32_t> prompt{7, 8};
    sampler.start(0, prompt);
    EXPECT_THAT(sampler.history(0).tokens, ElementsAre(7, 8));
    EXPECT_NE(sample(sampler, row, {0}), first);
    sampler.reset(0);
    EXPECT_EQ(sample(sampler, row, {0}), first);
}

TEST(Sampler, SequencesMayBeSampledByThreads) {
    const std::vector<float> row(1000, 0);
    Sampler alone({}, {}, 1);
    std::vector<std::vector<int32_t>> wanted(4), got(4);
    for (uint64_t key = 0; key < 4; ++key)
        for (int i = 0; i < 200; ++i) wanted[key].push_back(sample(alone, row, {key}).front());
    Sampler shared({}, {}, 1);
    std::vector<std::thread> threads;
    for (uint64_t key = 0; key < 4; ++key)
        threads.emplace_back([&, key] {
            for (int i = 0; i < 200; ++i) got[key].push_back(sample(shared, row, {key}).front());
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(got, wanted);
}

TEST(Sampler, MirostatSteersTowardsItsTarget) {
    Sampler sampler({Mirostat{3.0, 0.1}}, {}, 1);
    std::vector<float> row(500);
    for (size_t i = 0; i < row.size(); ++i) row[i] = -std::log(static_cast<float>(i + 1));
    double surprise = 0;
    constexpr int kSteps = 4000;
    for (int i = 0; i < kSteps; ++i) {
        const double before = sampler.history(0).mirostat_mu.value_or(6.0);
        sample(sampler, row, {0});
        surprise += 3.0 - (*sampler.history(0).mirostat_mu - before) / 0.1;
    }
    EXPECT_NEAR(surprise / kSteps, 3.0, 0.05);
}

}  // namespace
}  // namespace plait::sampling
