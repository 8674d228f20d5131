// route and combine.
#include "backend/cpu/kernels/products/experts.h"

#include <numeric>

#include "backend/cpu/kernel_harness.h"
#include "graph/graph.h"

namespace plait::cpu {
namespace {

struct Route {
    int32_t expert;
    float weight;
};

class ExpertsTest : public KernelTest {
protected:
    std::vector<Route> route(const Floats& logits, int32_t n, const RouteParams& how,
                             const Floats* bias = nullptr, const Floats* scales = nullptr) {
        std::vector<Route> y(n * how.n_used);
        RouteArgs args{};
        args.logits = ref_to(logits);
        args.has_bias = bias != nullptr;
        if (bias) args.bias = ref_to(*bias);
        args.has_expert_scale = scales != nullptr;
        if (scales) args.expert_scale = ref_to(*scales);
        args.y = ref_to(y);
        args.extent = Extent::tokens;
        args.gating = how.gating;
        args.renormalize = how.renormalize;
        args.experts = static_cast<int32_t>(logits.size()) / n;
        args.used = how.n_used;
        args.groups = how.n_groups;
        args.groups_used = how.n_groups_used;
        args.group_best = how.group_best;
        args.scale = how.scale;
        run_kernel(kernels().route, args, tokens(n), route_scratch_bytes(args), Cut::single);
        return y;
    }
};

std::vector<double> softmax(std::vector<double> x) {
    double all = 0;
    for (double& each : x) all += each = std::exp(each);
    for (double& each : x) each /= all;
    return x;
}

// Indices of the n largest values; ties go to the lower index.
std::vector<int32_t> largest(const std::vector<double>& scores, int32_t n) {
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    order.resize(n);
    return order;
}

std::vector<Route> expected_routes(std::vector<double> logits, const RouteParams& how,
                                   const Floats* bias) {
    std::vector<double> weights = logits;
    if (how.gating == Gating::softmax) weights = softmax(logits);
    if (how.gating == Gating::sigmoid)
        for (double& x : weights) x = 1 / (1 + std::exp(-x));
    std::vector<double> scores = weights;
    for (size_t e = 0; bias && e < scores.size(); ++e) scores[e] += (*bias)[e];
    std::vector<double> sums;
    const size_t size = scores.size() / how.n_groups;
    for (auto g = scores.begin(); g != scores.end(); g += static_cast<long>(size)) {
        std::vector<double> group(g, g + static_cast<long>(size));
        std::sort(group.rbegin(), group.rend());
        sums.push_back(size == 1 || how.group_best == 1 ? group[0] : group[0] + group[1]);
    }
    const std::vector<int32_t> groups = largest(sums, how.n_groups_used);
    for (size_t e = 0; e < scores.size(); ++e)
        if (std::find(groups.begin(), groups.end(), e / size) == groups.end()) scores[e] = -kInf;
    const std::vector<int32_t> experts = largest(scores, how.n_used);
    std::vector<double> chosen;
    for (const int32_t e : experts) chosen.push_back(weights[e]);
    if (how.gating == Gating::softmax_chosen) chosen = softmax(chosen);
    double all = 0;
    for (const double weight : chosen) all += weight;
    std::vector<Route> routes;
    for (size_t u = 0; u < experts.size(); ++u)
        routes.push_back(
            {experts[u],
             static_cast<float>(how.scale * chosen[u] /
                                (how.renormalize ? std::max(all, std::pow(2.0, -14)) : 1))});
    return routes;
}

struct Choice {
    int32_t experts, groups, groups_used, used;
};

TEST_P(ExpertsTest, ChoosesTheLargestScoresOfTheBestGroups) {
    const int32_t n = 7;
    for (const Choice c : {Choice{1, 1, 1, 1},
                           {2, 1, 1, 2},
                           {5, 1, 1, 4},
                           {60, 1, 1, 4},
                           {128, 1, 1, 8},
                           {8, 8, 3, 3},
                           {12, 4, 2, 5},
                           {256, 8, 4, 8},
                           {20, 2, 2, 3}}) {
        const Floats logits = random_floats(n * c.experts, random, 2.0f);
        const Floats bias = random_floats(c.experts, random, 0.3f);
        for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen}) {
            for (const bool renormalize : {false, true}) {
                for (const Floats* with : {static_cast<const Floats*>(nullptr), &bias}) {
                    const RouteParams how{c.used, renormalize, 2.5f,
                                          gating, c.groups,    c.groups_used};
                    const std::vector<Route> routes = route(logits, n, how, with);
                    for (int32_t t = 0; t < n; ++t) {
                        const float* first = logits.data() + t * c.experts;
                        const auto expected =
                            expected_routes({first, first + c.experts}, how, with);
                        for (int32_t u = 0; u < c.used; ++u) {
                            EXPECT_EQ(routes[t * c.used + u].expert, expected[u].expert);
                            EXPECT_TRUE(near(routes[t * c.used + u].weight, expected[u].weight,
                                             2e-6 * (1 + std::abs(expected[u].weight))));
                        }
                    }
                }
            }
        }
    }
}

TEST_P(ExpertsTest, AnExpertsScaleMultipliesItsWeightAtLast) {
    const int32_t n = 5, experts = 17;
    const Floats logits = random_floats(n * experts, random, 2.0f);
    const Floats scales = random_floats(experts, random);
    for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen}) {
        const RouteParams how{4, true, 1.5f, gating};
        const std::vector<Route> plain = route(logits, n, how);
        const std::vector<Route> scaled = route(logits, n, how, nullptr, &scales);
        for (size_t i = 0; i < plain.size(); ++i) {
            EXPECT_EQ(scaled[i].expert, plain[i].expert);
            EXPECT_EQ(scaled[i].weight, plain[i].weight * scales[plain[i].expert]);
        }
    }
}

// Expert 2 has the best score, but the second score of its group is low.
TEST_P(ExpertsTest, AGroupIsRankedByItsBestScores) {
    RouteParams how{1, false, 1.0f, Gating::sigmoid, 2, 1};
    EXPECT_EQ(route(Floats({1, 1, 2, -9}), 1, how)[0].expert, 0);
    EXPECT_EQ(route(Floats({1, 1, 2, 1}), 1, how)[0].expert, 2);
    how.group_best = 1;
    EXPECT_EQ(route(Floats({1, 1, 2, -9}), 1, how)[0].expert, 2);
}

// All sigmoids may be nearly zero.
TEST_P(ExpertsTest, NearlyZeroWeightsStayFinite) {
    const std::vector<Route> routes =
        route(Floats({-200, -300, -200}), 1, {2, true, 1.0f, Gating::sigmoid});
    EXPECT_EQ(routes[0].weight, 0.0f);
    EXPECT_EQ(routes[1].weight, 0.0f);
}

// The weights reach from 0.2 to less than 2^-126, below which they may be zero.
TEST_P(ExpertsTest, WeightsOfDistantLogitsKeepTheirDigits) {
    Floats logits(400);
    for (size_t e = 0; e < logits.size(); ++e) logits[e] = -0.249f * static_cast<float>(e);
    const auto n_experts = static_cast<int32_t>(logits.size());
    const std::vector<Route> routes = route(logits, 1, RouteParams{n_experts, false, 1.0f});
    const std::vector<double> expected = softmax({logits.begin(), logits.end()});
    for (int32_t e = 0; e < n_experts; ++e) {
        EXPECT_EQ(routes[e].expert, e);
        EXPECT_TRUE(near(routes[e].weight, expected[e], 5e-7 * expected[e] + std::pow(2.0, -126)))
            << logits[e];
    }
}

TEST_P(ExpertsTest, TiesGoToTheLowerNumberAndNanStillNamesExperts) {
    const std::vector<Route> ties = route(Floats({1, 3, 3, 3, 1}), 1, {4, false, 1.0f});
    EXPECT_EQ(ties[0].expert, 1);
    EXPECT_EQ(ties[1].expert, 2);
    EXPECT_EQ(ties[2].expert, 3);
    EXPECT_EQ(ties[3].expert, 0);
    const Floats logits({kNan, 1, kNan, 2});
    for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen}) {
        const std::vector<Route> nan = route(logits, 1, {4, true, 1.0f, gating});
        std::vector<int32_t> seen;
        for (const Route& each : nan) seen.push_back(each.expert);
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(seen, (std::vector<int32_t>{0, 1, 2, 3}));
        EXPECT_TRUE(std::isnan(nan[0].weight));
    }
    const std::vector<Route> grouped =
        route(Floats({kNan, kNan, kNan, kNan}), 1, {2, true, 1.0f, Gating::sigmoid, 2, 1});
    EXPECT_EQ(grouped[0].expert, 0);
    EXPECT_EQ(grouped[1].expert, 1);
}

TEST_P(ExpertsTest, CombinesByRank) {
    const int64_t n = 3, used = 4;
    for (const int64_t width : {1, 16, 37}) {
        const Floats x = random_floats(n * used * width, random);
        std::vector<Route> routes(n * used);
        for (Route& each : routes) each = {0, std::normal_distribution<float>()(random)};
        Floats y(n * width);
        CombineArgs args{ref_to(x), ref_to(routes), ref_to(y), Extent::tokens, 0, used, width};
        run_kernel(kernels().combine, args, tokens(n), 0, Cut::single);
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t i = 0; i < width; ++i) {
                double expected = 0;
                for (int64_t u = 0; u < used; ++u)
                    expected += double(routes[t * used + u].weight) * x[(t * used + u) * width + i];
                EXPECT_TRUE(near(y[t * width + i], expected, 2e-6));
            }
        }
    }
}

PLAIT_ON_EVERY_ISA(ExpertsTest);

}  // namespace
}  // namespace plait::cpu
