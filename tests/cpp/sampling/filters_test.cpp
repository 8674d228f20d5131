// The filters on rows longer than those that tests/python/generation/test_sampling.py compares with
// NumPy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "sampling/truncation.h"

namespace plait::sampling {
namespace {

std::vector<float> random_row(uint32_t seed, float spread) {
    std::mt19937 random(seed);
    std::vector<float> row(5000);
    for (float& x : row) x = spread * static_cast<float>(random() % 1000) / 1000.0f;
    return row;
}

std::vector<int32_t> sorted_tokens(const std::vector<float>& row) {
    std::vector<int32_t> tokens(row.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    return tokens;
}

template <typename Filter>
std::vector<int32_t> left_after(const Filter& filter, const std::vector<float>& row) {
    Candidates candidates;
    candidates.fill(row, {});
    filter.apply(candidates);
    std::vector<int32_t> tokens;
    for (const Candidate& c : candidates.items()) tokens.push_back(c.token);
    std::sort(tokens.begin(), tokens.end());
    return tokens;
}

std::vector<int32_t> first(const std::vector<int32_t>& tokens, size_t n) {
    std::vector<int32_t> result(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n));
    std::sort(result.begin(), result.end());
    return result;
}

// The fewest of the likeliest with at least p together, one after the other.
size_t nucleus(const std::vector<float>& row, const std::vector<int32_t>& sorted, double p) {
    double total = 0;
    for (const float x : row) total += std::exp(static_cast<double>(x));
    double sum = 0;
    size_t n = 0;
    while (n < sorted.size() && sum < p * total)
        sum += std::exp(static_cast<double>(row[static_cast<size_t>(sorted[n++])]));
    return n;
}

TEST(Filters, TopKAndTopPCutWhereSortingEverythingWould) {
    for (const float spread : {1.0f, 8.0f, 30.0f}) {
        const auto row = random_row(static_cast<uint32_t>(spread), spread);
        const auto sorted = sorted_tokens(row);
        for (const int64_t k : {1, 63, 64, 65, 4999, 5000, 9000})
            EXPECT_EQ(left_after(TopK{k}, row),
                      first(sorted, std::min<size_t>(static_cast<size_t>(k), row.size())));
        for (const double p : {0.001, 0.3, 0.6, 0.95, 0.9999})
            EXPECT_EQ(left_after(TopP{p}, row), first(sorted, nucleus(row, sorted, p))) << p;
    }
}

TEST(Filters, OneAfterTheOther) {
    const auto row = random_row(5, 12);
    const auto sorted = sorted_tokens(row);
    Candidates candidates;
    candidates.fill(row, {});
    TopK{500}.apply(candidates);
    MinP{0.2}.apply(candidates);
    const float least = row[static_cast<size_t>(sorted[0])] + std::log(0.2f);
    const auto n = std::count_if(sorted.begin(), sorted.begin() + 500, [&](int32_t token) {
        return row[static_cast<size_t>(token)] >= least;
    });
    EXPECT_EQ(static_cast<ptrdiff_t>(candidates.size()), n);
    TopK{3}.apply(candidates);
    EXPECT_EQ(candidates.best().token, sorted[0]);
    EXPECT_EQ(candidates.items()[2].token, sorted[2]);
}

TEST(Filters, TypicalKeepsItsShareOfTheProbability) {
    const auto row = random_row(9, 10);
    for (const double p : {0.1, 0.5, 0.9}) {
        double total = 0;
        double kept = 0;
        for (const float x : row) total += std::exp(static_cast<double>(x));
        for (const int32_t token : left_after(Typical{p}, row))
            kept += std::exp(static_cast<double>(row[static_cast<size_t>(token)]));
        EXPECT_GE(kept / total, p - 1e-9);
        EXPECT_LT(kept / total, p + 0.01);
    }
}

}  // namespace
}  // namespace plait::sampling
