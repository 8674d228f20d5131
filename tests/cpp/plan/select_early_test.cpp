#include "plan/passes.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "graph/ops.h"

namespace plait::select_early_test {
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

// Attention over a cache, of which some rows are selected.
struct Attention : Example {
    static constexpr int64_t kSequences = 2, kRows = 64;
    Value begin = by_sequence(InputField::token_begin);
    Value output_begin = by_sequence(InputField::output_begin);
    Value first = by_token(InputField::first);
    Value last = by_token(InputField::last);
    Value keys = graph.storage(0, {DType::f32, {kRows, kWidth}});

    Value by_sequence(InputField field) {
        return graph.input({field}, {DType::i32, {kSequences + 1}}, Extent::fixed);
    }
    Value by_token(InputField field) {
        return graph.input({field}, {DType::i32, {kTokens}}, Extent::tokens);
    }
    Value attend(Value h) {
        const Value runs = graph.input({InputField::runs}, {DType::i32, {kRows, 4}}, Extent::fixed);
        const Value y = plait::attend({.q = split_heads(h, 1),
                                       .keys = keys,
                                       .values = keys,
                                       .token_begin = begin,
                                       .runs = runs,
                                       .run_begin = by_sequence(InputField::run_begin),
                                       .first = first,
                                       .last = last},
                                      {.n_heads = 1,
                                       .n_kv_heads = 1,
                                       .key_dim = kWidth,
                                       .value_dim = kWidth,
                                       .scale = 1.0f,
                                       .softcap = 0.0f,
                                       .flash = true});
        return merge_heads(y);
    }
    const ops::Attend& attention() const {
        for (const Node& node : graph.nodes())
            if (const auto* attend = std::get_if<ops::Attend>(&node.op)) return *attend;
        throw std::logic_error("no attention");
    }
    InputField field_of(NodeId id) const {
        return std::get<ops::Input>(graph.node(id).op).id.field;
    }
};

TEST(SelectEarly, QueriesOfOrderedOutputsAreComputedForTheseRowsAlone) {
    Attention e;
    e.graph.output(OutputId::logits,
                   select_rows(e.block(e.attend(e.block(e.x))), e.rows, e.output_begin));
    select_early(e.graph);
    EXPECT_EQ(count_selections(e.graph), 1);  // of x
    const ops::Attend& attend = e.attention();
    // Kernels count their tasks from these before the run.
    EXPECT_EQ(e.field_of(attend.first), InputField::output_first);
    EXPECT_EQ(e.field_of(attend.last), InputField::output_last);
    EXPECT_EQ(e.field_of(attend.token_begin), InputField::output_begin);
    for (const NodeId id : {attend.q.id, attend.first.id, attend.last.id}) {
        EXPECT_EQ(e.graph.node(id).extent, Extent::outputs);
        EXPECT_EQ(e.graph.node(id).type.shape[0], kOutputs);
    }
}

TEST(SelectEarly, QueriesOfOutputsInAnyOrderStayWhole) {
    Attention e;
    e.graph.output(OutputId::logits, select_rows(e.block(e.attend(e.block(e.x))), e.rows));
    select_early(e.graph);
    const ops::Attend& attend = e.attention();
    EXPECT_EQ(e.field_of(attend.token_begin), InputField::token_begin);
    EXPECT_EQ(e.graph.node(attend.q).type.shape[0], kTokens);
}

}  // namespace
}  // namespace plait::select_early_test
