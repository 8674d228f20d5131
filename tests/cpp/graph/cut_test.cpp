// Which values cross between the parts of a graph.
#include "graph/cut.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/capture.h"
#include "graph/ops.h"

namespace plait {
namespace {

using Names = std::vector<std::string>;

struct Example {
    Graph graph;
    Value tokens = graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
    Value table = graph.weight({0, {DType::f32, {100, 32}}});
    Value x = embed(table, tokens);

    // `parts`: by value, the part that computes it.
    std::vector<Graph> parts(std::initializer_list<std::pair<Value, uint8_t>> parts, size_t n) {
        std::vector<uint8_t> part_of(graph.nodes().size());
        for (const auto& [value, part] : parts) part_of[value.id] = part;
        return cut(graph, part_of, n);
    }
};

Names names(const Graph& graph) {
    Names names;
    for (const Node& node : graph.nodes()) names.emplace_back(op_name(node.op));
    return names;
}

template <typename T>
std::vector<uint32_t> channels(const Graph& graph) {
    std::vector<uint32_t> all;
    for (const Node& node : graph.nodes())
        if (const auto* op = std::get_if<T>(&node.op)) all.push_back(op->channel);
    return all;
}

TEST(Cut, AValueGoesToAnotherPartAndBack) {
    Example e;
    const Value y = scale(e.x, 2.0f), z = scale(y, 3.0f);
    e.graph.output(OutputId::logits, z);
    const auto parts = e.parts({{e.x, 0}, {y, 1}, {z, 0}}, 2);
    EXPECT_EQ(names(parts[0]), (Names{"weight", "input", "embed", "send", "receive", "scale"}));
    EXPECT_EQ(names(parts[1]), (Names{"receive", "scale", "send"}));
    EXPECT_EQ(channels<ops::Send>(parts[0]), channels<ops::Receive>(parts[1]));
    EXPECT_EQ(channels<ops::Send>(parts[1]), channels<ops::Receive>(parts[0]));
    EXPECT_NE(channels<ops::Send>(parts[0]), channels<ops::Send>(parts[1]));
    EXPECT_EQ(parts[1].node(0).type, e.x.type());
    EXPECT_EQ(parts[1].node(0).extent, Extent::tokens);
    ASSERT_EQ(parts[0].outputs().size(), 1u);
    EXPECT_EQ(parts[0].outputs()[0].second, 5u);
    EXPECT_TRUE(parts[1].outputs().empty());
}

TEST(Cut, AValueIsSentOnceToEachPartThatReadsIt) {
    Example e;
    const Value a = scale(e.x, 2.0f), b = scale(e.x, 3.0f), c = scale(e.x, 4.0f);
    for (const Value value : {a, b, c}) e.graph.output(captured(value.id), value);
    const auto parts = e.parts({{e.x, 0}, {a, 1}, {b, 1}, {c, 2}}, 3);
    EXPECT_EQ(names(parts[0]), (Names{"weight", "input", "embed", "send", "send"}));
    EXPECT_EQ(names(parts[1]), (Names{"receive", "scale", "scale"}));
    EXPECT_EQ(names(parts[2]), (Names{"receive", "scale"}));
}

// Inputs, weights and views exist wherever they are read.
TEST(Cut, SourcesAndViewsAreCopied) {
    Example e;
    const Value heads = split_heads(e.x, 4);
    const Value y = rms_norm(heads, {}, 1e-5f), z = rms_norm(heads, {}, 1e-6f);
    const Value again = embed(e.table, e.tokens);
    e.graph.output(OutputId::logits, merge_heads(y));
    e.graph.output(OutputId::embeddings, merge_heads(z));
    e.graph.output(OutputId::first_captured, again);
    const auto parts = e.parts({{e.x, 0}, {y, 0}, {z, 1}, {again, 1}}, 2);
    EXPECT_EQ(names(parts[0]),
              (Names{"weight", "input", "embed", "send", "reshape", "rms_norm", "reshape"}));
    EXPECT_EQ(names(parts[1]),
              (Names{"receive", "reshape", "rms_norm", "weight", "input", "embed", "reshape"}));
    EXPECT_EQ(parts[0].outputs().size(), 1u);
    EXPECT_EQ(parts[1].outputs().size(), 2u);
}

TEST(Cut, ACacheStaysWithinItsPart) {
    Example e;
    const Value rows = e.graph.input({InputField::write_rows}, {DType::i32, {16}}, Extent::tokens);
    const Value stored = store_rows(e.graph.storage(0, {DType::f32, {64, 32}}), e.x, rows);
    const auto parts = e.parts({{e.x, 0}, {stored, 1}}, 2);
    EXPECT_EQ(names(parts[1]), (Names{"storage", "receive", "input", "store_rows"}));
    const Value copied = copy_rows(stored, rows, rows);
    EXPECT_THROW(e.parts({{e.x, 0}, {stored, 1}, {copied, 0}}, 2), InternalError);
}

TEST(Cut, NamesStayWithTheNodeThatComputes) {
    Example e;
    e.graph.name(e.x, Role::l_out, 2);
    const Value y = scale(e.x, 2.0f);
    e.graph.output(OutputId::logits, y);
    const auto parts = e.parts({{e.x, 0}, {y, 1}}, 2);
    EXPECT_EQ(parts[0].node(2).role, Role::l_out);
    EXPECT_EQ(parts[0].node(2).layer, 2);
    EXPECT_EQ(parts[1].node(0).role, Role::none);
}

}  // namespace
}  // namespace plait
