#include "plan/passes.h"

#include <gtest/gtest.h>

#include "graph/ops.h"

namespace plait {
namespace {

constexpr int64_t kTokens = 16, kOutputs = 4, kWidth = 32;

// y = norm(x) W + x, then `last` of it, then the rows that are asked for.
struct Example {
    Graph graph;
    Value x =
        graph.input({InputField::embeddings}, {DType::f32, {kTokens, kWidth}}, Extent::tokens);
    Value rows =
        graph.input({InputField::output_tokens}, {DType::i32, {kOutputs}}, Extent::outputs);
    Value weight = graph.weight({0, {DType::f32, {kWidth, kWidth}}});

    Value block(Value v) { return linear(rms_norm(v, {}, 1e-5f), weight) + v; }
};

int count_selections(const Graph& graph) {
    int n = 0;
    for (const Node& node : graph.nodes()) n += std::holds_alternative<ops::SelectRows>(node.op);
    return n;
}

TEST(SelectEarly, WhatIsComputedRowByRowIsComputedForTheseRowsAlone) {  // S4-34
    Example e;
    e.graph.output(OutputId::logits, select_rows(e.block(e.block(e.x)), e.rows));
    select_early(e.graph);
    EXPECT_EQ(count_selections(e.graph), 1);
    for (const Node& node : e.graph.nodes()) {
        if (const auto* select = std::get_if<ops::SelectRows>(&node.op)) {
            EXPECT_TRUE(std::holds_alternative<ops::Input>(e.graph.node(select->x).op));
        }
        if (!std::holds_alternative<ops::Linear>(node.op)) continue;
        EXPECT_EQ(node.extent, Extent::outputs);
        EXPECT_EQ(node.type.shape[0], kOutputs);
    }
}

TEST(SelectEarly, WhatOtherRowsNeedStaysWhole) {
    Example e;
    const Value h = e.block(e.x);
    const Value storage = e.graph.storage(0, {DType::f32, {64, kWidth}});
    const Value write =
        e.graph.input({InputField::write_rows}, {DType::i32, {kTokens}}, Extent::tokens);
    store_rows(storage, h, write);
    e.graph.output(OutputId::logits, select_rows(e.block(h), e.rows));
    select_early(e.graph);
    int whole = 0, selected = 0;
    for (const Node& node : e.graph.nodes()) {
        if (!std::holds_alternative<ops::Linear>(node.op)) continue;
        ++(node.extent == Extent::tokens ? whole : selected);
    }
    EXPECT_EQ(whole, 1);
    EXPECT_EQ(selected, 1);
    EXPECT_EQ(count_selections(e.graph), 1);  // of h, which the norm and the sum share
}

TEST(SelectEarly, HeadsAreRowsToo) {
    Example e;
    const Value heads = split_heads(e.x, 4);
    e.graph.output(OutputId::logits, select_rows(merge_heads(scale(heads, 2.0f)), e.rows));
    select_early(e.graph);
    EXPECT_EQ(count_selections(e.graph), 1);
    for (const Node& node : e.graph.nodes())
        if (std::holds_alternative<ops::Scale>(node.op)) {
            EXPECT_EQ(node.type.shape, Shape({kOutputs, 4, kWidth / 4}));
        }
}

}  // namespace
}  // namespace plait
