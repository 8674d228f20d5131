#include "sampling/candidates.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "support/odd_values.h"

namespace plait::sampling {
namespace {

using testing::ElementsAre;

std::vector<int32_t> tokens(std::span<const Candidate> items) {
    std::vector<int32_t> result;
    for (const Candidate& c : items) result.push_back(c.token);
    return result;
}

Candidates of(const std::vector<float>& logits, const std::vector<uint32_t>& mask = {}) {
    Candidates made;
    made.fill(logits, mask);
    return made;
}

TEST(Candidates, LeaveOutWhatIsForbidden) {
    EXPECT_THAT(tokens(of({1, -kInf, 3, 2}).items()), ElementsAre(0, 2, 3));
    EXPECT_THAT(tokens(of({1, -kInf, 3, 2}, {0b1011}).items()), ElementsAre(0, 3));
}

TEST(Candidates, RefuseRowsThatAreNone) {
    EXPECT_THROW(of({1, kNan}), InvalidArgument);
    EXPECT_THROW(of({1, kNan}, {1}), InvalidArgument);  // masked or not
    EXPECT_THROW(of({1, kInf}), InvalidArgument);
    EXPECT_THROW(of({-kInf, -kInf}), InvalidArgument);
    EXPECT_THROW(of({1, -kInf}, {0b10}), InvalidArgument);
}

TEST(Candidates, SortingInStepsEqualsSortingAtOnce) {
    std::mt19937 random(3);
    std::vector<float> logits(1000);
    for (float& x : logits) x = static_cast<float>(random() % 50);  // many equal ones
    Candidates all = of(logits);
    const auto wanted = tokens(all.sort_first(logits.size()));
    Candidates some = of(logits);
    for (const size_t n : {1u, 7u, 7u, 64u, 500u, 1000u}) {
        const auto got = tokens(some.sort_first(n));
        EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin())) << n;
    }
    EXPECT_EQ(of(logits).best().token, wanted.front());
}

TEST(Candidates, TheBestAreFoundInOneLook) {
    std::mt19937 random(4);
    for (const uint32_t n_values : {5u, 1u << 20}) {
        std::vector<float> logits(3000);
        for (float& x : logits) x = static_cast<float>(random() % n_values);
        logits[7] = -kInf;
        std::vector<uint32_t> mask(logits.size() / 32 + 1);
        for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
        for (const size_t n : {1u, 2u, 40u, 700u, 2999u, 3000u, 5000u}) {
            for (const auto& bits : {std::vector<uint32_t>{}, mask}) {
                Candidates all = of(logits, bits);
                Candidates best;
                best.fill_best(logits, bits, n);
                EXPECT_EQ(tokens(best.items()), tokens(all.sort_first(n)));
            }
        }
    }
    Candidates none;
    EXPECT_THROW(none.fill_best(std::vector<float>{-kInf, -kInf}, {}, 1), InvalidArgument);
    EXPECT_THROW(none.fill_best(std::vector<float>{1, kInf}, {}, 1), InvalidArgument);
    EXPECT_THROW(none.fill_best(std::vector<float>{kNan, 1}, {}, 1), InvalidArgument);
}

TEST(Candidates, ProbabilitiesAreExactForLargeLogits) {
    for (const float x : {0.0f, 3e38f, -3e38f}) {
        const Candidates three = of({x, x, x, -kInf});
        EXPECT_NEAR(three.softmax().log_p(three.items()[1]), -std::log(3.0), 1e-15);
    }
}

TEST(Candidates, NeverEndUpEmpty) {
    Candidates c = of({1, 2});
    EXPECT_THROW(c.keep_if("nothing", [](const Candidate&) { return false; }), InvalidArgument);
    Candidates d = of({1, -kInf});
    EXPECT_THROW(d.keep_only(1), InvalidArgument);
    d.keep_only(0);
    EXPECT_THAT(tokens(d.items()), ElementsAre(0));
}

}  // namespace
}  // namespace plait::sampling
