// route and combine.
#include "backend/cpu/kernels/combine.h"
#include "backend/cpu/kernels/route.h"
#include "backend/kernel_harness.h"

namespace plait::cpu {
namespace {

struct Route {
    int32_t expert;
    float weight;
};

class ExpertsTest : public KernelTest {
protected:
    std::vector<Route> route(const Floats& logits, int32_t n, int32_t used, bool renormalize,
                             float scale) {
        std::vector<Route> y(n * used);
        RouteArgs args{};
        args.logits = ref_to(logits);
        args.y = ref_to(y);
        args.extent = 1;
        args.renormalize = renormalize;
        args.experts = static_cast<int32_t>(logits.size()) / n;
        args.used = used;
        args.scale = scale;
        run_kernel(kernels().route, args, tokens(n), args.experts * sizeof(float), Cut::single);
        return y;
    }
};

TEST_P(ExpertsTest, ChoosesTheLargestSoftmaxWeights) {
    for (const int32_t experts : {1, 2, 5, 8, 60, 128}) {
        for (const bool renormalize : {false, true}) {
            const int32_t n = 7, used = std::min(experts, 4);
            const Floats logits = random_floats(n * experts, random, 2.0f);
            const std::vector<Route> routes = route(logits, n, used, renormalize, 2.5f);
            for (int32_t t = 0; t < n; ++t) {
                std::vector<int32_t> order(experts);
                std::vector<double> weight(experts);
                double all = 0, chosen = 0;
                for (int32_t e = 0; e < experts; ++e) {
                    order[e] = e;
                    weight[e] = std::exp(static_cast<double>(logits[t * experts + e]));
                    all += weight[e];
                }
                std::stable_sort(order.begin(), order.end(),
                                 [&](int32_t a, int32_t b) { return weight[a] > weight[b]; });
                for (int32_t u = 0; u < used; ++u) chosen += weight[order[u]];
                for (int32_t u = 0; u < used; ++u) {
                    EXPECT_EQ(routes[t * used + u].expert, order[u]);
                    const double expected = 2.5 * weight[order[u]] / (renormalize ? chosen : all);
                    EXPECT_TRUE(near(routes[t * used + u].weight, expected, 1e-6));
                }
            }
        }
    }
}

TEST_P(ExpertsTest, TiesGoToTheLowerNumberAndNanStillNamesExperts) {
    const std::vector<Route> ties = route(Floats({1, 3, 3, 3, 1}), 1, 4, false, 1.0f);
    EXPECT_EQ(ties[0].expert, 1);
    EXPECT_EQ(ties[1].expert, 2);
    EXPECT_EQ(ties[2].expert, 3);
    EXPECT_EQ(ties[3].expert, 0);
    const std::vector<Route> nan = route(Floats({kNan, 1, kNan, 2}), 1, 4, true, 1.0f);
    std::vector<int32_t> seen;
    for (const Route& each : nan) seen.push_back(each.expert);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_TRUE(std::isnan(nan[0].weight));
}

TEST_P(ExpertsTest, CombinesByRank) {
    const int64_t n = 3, used = 4;
    for (const int64_t width : {1, 16, 37}) {
        const Floats x = random_floats(n * used * width, random);
        std::vector<Route> routes(n * used);
        for (Route& each : routes) each = {0, std::normal_distribution<float>()(random)};
        Floats y(n * width);
        CombineArgs args{ref_to(x), ref_to(routes), ref_to(y), 1, 0, used, width};
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
