// What flows between values and a result, what a step must keep, and what is refused. The
// derivatives themselves are compared with differences in tests/python/ops/test_derivatives.py.
#include "gradient/gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "graph/ops.h"

namespace plait::gradient_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kCapacity = 8, kTokens = 3;

class FakeStep final : public ForwardStep {
public:
    std::map<NodeId, std::vector<float>> values;
    std::vector<float> given;
    int stops_after = 1000;  // calls of check_stop()

    int64_t rows(Extent extent) const override { return extent == Extent::tokens ? kTokens : 1; }
    std::span<const float> value(NodeId node) const override { return values.at(node); }
    std::span<const std::byte> input(InputId) const override {
        return std::as_bytes(std::span(given));
    }
    void read_weight(WeightId, int64_t, std::span<float> rows) const override {
        std::ranges::fill(rows, 2.0f);
    }
    void read_cache(uint32_t, int32_t, std::span<float>) const override {}
    void check_stop() const override {
        if (++n_checks > stops_after) throw Interrupted();
    }
    mutable int n_checks = 0;
};

struct Chain {
    Graph graph;
    Value x, doubled, norm, other, result;
    Chain() {
        x = graph.input({InputField::embeddings}, {DType::f32, {kCapacity, 2}}, Extent::tokens);
        doubled = scale(x, 2.0f);
        norm = rms_norm(doubled, {}, 1e-5f);
        other = scale(x, 7.0f);  // the result does not depend on it
        result = (doubled + doubled) * norm;
    }
    GradientPlan plan(std::initializer_list<NodeId> wanted) const {
        return make_gradient_plan(graph, result.id, std::vector<NodeId>(wanted), "test");
    }
};

TEST(GradientPlan, KeepsWhatDerivativesBetweenValuesAndResultRead) {
    const Chain chain;
    const GradientPlan all = chain.plan({chain.x.id});
    const NodeId sum = chain.result.id - 1;
    EXPECT_THAT(all.kept, ElementsAre(chain.doubled.id, chain.norm.id, sum));
    EXPECT_TRUE(all.flows[chain.x.id]);
    EXPECT_FALSE(all.flows[chain.other.id]);
    // Above the norm, only the product is differentiated.
    const GradientPlan late = chain.plan({chain.norm.id});
    EXPECT_THAT(late.kept, ElementsAre(chain.norm.id, sum));
    EXPECT_FALSE(late.flows[chain.doubled.id]);
}

TEST(GradientPlan, NamesWhatHasNoDerivative) {
    Graph graph;
    const Value x =
        graph.input({InputField::embeddings}, {DType::f32, {kCapacity, 2}}, Extent::tokens);
    const Value edited = edit(scale(x, 2.0f), 0);
    graph.name(edited, Role::l_out, 4);
    const Value result = scale(edited, 3.0f);
    const std::vector<NodeId> before{x.id}, after{edited.id};
    EXPECT_THAT([&] { make_gradient_plan(graph, result.id, before, "alpha"); },
                ThrowsMessage<UnsupportedError>(
                    HasSubstr("the operation \"edit\" (blk.4.l_out) of architecture alpha")));
    EXPECT_TRUE(make_gradient_plan(graph, result.id, after, "alpha").kept.empty());
}

TEST(Gradient, AddsUpOverAllReaders) {
    const Chain chain;
    FakeStep step;
    const std::vector<float> ones(kTokens * 2, 1.0f);
    for (NodeId i = 0; i < chain.graph.nodes().size(); ++i) step.values[i] = ones;
    const NodeId sum = chain.result.id - 1;
    const auto found = run_gradient(chain.graph, chain.plan({sum, chain.norm.id, chain.other.id}),
                                    step, std::vector<float>(kTokens * 2, 5.0f));
    EXPECT_EQ(found[0], std::vector<float>(kTokens * 2, 5.0f));
    EXPECT_EQ(found[1], std::vector<float>(kTokens * 2, 5.0f));
    EXPECT_EQ(found[2], std::vector<float>(kTokens * 2, 0.0f));
    // x is read twice by the sum: 2 * 2 * 5. A norm of equal elements passes on nothing.
    const auto of_x = run_gradient(chain.graph, chain.plan({chain.x.id}), step,
                                   std::vector<float>(kTokens * 2, 5.0f));
    for (const float g : of_x[0]) EXPECT_NEAR(g, 20.0f, 1e-3f);
}

TEST(Gradient, ReadsNoPanelOfAWeightWhoseGradientIsZero) {
    Graph graph;
    const Value x =
        graph.input({InputField::embeddings}, {DType::f32, {kCapacity, 2}}, Extent::tokens);
    const Value y = linear(x, graph.weight({0, {DType::f32, {40000, 2}}}));
    FakeStep step;
    const std::vector<NodeId> wanted{x.id};
    const GradientPlan plan = make_gradient_plan(graph, y.id, wanted, "test");
    EXPECT_TRUE(plan.kept.empty());
    std::vector<float> of_result(kTokens * 40000);
    of_result[39999] = 1.0f;
    const auto found = run_gradient(graph, plan, step, of_result);
    EXPECT_THAT(found[0], ElementsAre(2, 2, 0, 0, 0, 0));
    EXPECT_LE(step.n_checks, static_cast<int>(graph.nodes().size()) + 1);
}

TEST(Gradient, CanBeStopped) {
    const Chain chain;
    FakeStep step;
    for (NodeId i = 0; i < chain.graph.nodes().size(); ++i)
        step.values[i].resize(kTokens * 2, 1.0f);
    step.stops_after = 2;
    EXPECT_THROW(run_gradient(chain.graph, chain.plan({chain.x.id}), step,
                              std::vector<float>(kTokens * 2, 1.0f)),
                 Interrupted);
}

}  // namespace
}  // namespace plait::gradient_test
