#include "plan/buffers.h"

#include <gtest/gtest.h>

#include <random>

#include "graph/capture.h"
#include "graph/ops.h"
#include "plan/passes.h"
#include "support/plain_graph.h"

namespace plait::buffers_test {
namespace {

InputLayout layout_with_tokens() {
    InputLayout inputs;
    inputs.add({InputField::tokens}, 4096);
    return inputs;
}

Buffers place(const Graph& graph) {
    const test::PlainGraph lowered(graph);
    return place_values(lowered, find_stages(lowered), layout_with_tokens());
}

// A graph of random additions: values with random lifetimes.
Graph random_graph(std::mt19937& random) {
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
    const Weight table{0, {DType::f32, {100, 32}}};
    std::vector<Value> values{embed(graph.weight(table), tokens)};
    for (int i = 0; i < 60; ++i) {
        const Value a = values[random() % values.size()], b = values[random() % values.size()];
        if (random() % 4 == 0)
            values.push_back(merge_heads(split_heads(a, 4)));
        else
            values.push_back(a + b);
    }
    graph.output(OutputId::logits, values.back());
    return graph;
}

TEST(Buffers, CapturedValuesLiveUntilTheRunEnds) {
    std::mt19937 random(11);
    for (int round = 0; round < 50; ++round) {
        Graph graph = random_graph(random);
        std::vector<ValueName> names;
        for (int i = 0; i < 5; ++i) {
            const auto node = static_cast<NodeId>(2 + random() % (graph.nodes().size() - 3));
            graph.name({&graph, node}, Role::l_out, i);
            names.push_back({Role::l_out, static_cast<int16_t>(i)});
        }
        capture(graph, names, true);
        prune(graph);
        const Buffers buffers = place(graph);
        const std::span<const Node> nodes = graph.nodes();
        for (const auto& [id, kept] : graph.outputs()) {
            const Place& place = buffers.places[kept];
            if (place.space != Space::arena) continue;
            for (NodeId later = kept + 1; later < nodes.size(); ++later) {
                const Place& other = buffers.places[later];
                if (other.space != Space::arena) continue;
                const bool apart = place.offset + nodes[kept].type.bytes() <= other.offset ||
                                   other.offset + nodes[later].type.bytes() <= place.offset;
                EXPECT_TRUE(apart || std::holds_alternative<ops::Reshape>(nodes[later].op));
            }
        }
    }
}

TEST(Buffers, ValuesAliveTogetherNeverOverlap) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        Graph graph = random_graph(random);
        const std::vector<uint32_t> stages = find_stages(test::PlainGraph(graph));
        const Buffers buffers = place(graph);
        const std::span<const Node> nodes = graph.nodes();
        // Bytes are followed from the node that makes them, through aliases, to every reader.
        std::vector<NodeId> owner(nodes.size());
        std::vector<NodeId> last(nodes.size());
        for (NodeId i = 0; i < nodes.size(); ++i) {
            const auto* view = std::get_if<ops::Reshape>(&nodes[i].op);
            owner[i] = view != nullptr ? owner[view->x] : i;
            last[i] = i;
            for_each_operand(nodes[i].op, [&](NodeId operand) { last[owner[operand]] = i; });
        }
        for (NodeId a = 0; a < nodes.size(); ++a) {
            for (NodeId b = a + 1; b < nodes.size(); ++b) {
                const Place& pa = buffers.places[a];
                const Place& pb = buffers.places[b];
                if (pa.space != Space::arena || pb.space != Space::arena) continue;
                if (owner[a] != a || owner[b] != b || stages[last[a]] < stages[b]) continue;
                const bool apart = pa.offset + nodes[a].type.bytes() <= pb.offset ||
                                   pb.offset + nodes[b].type.bytes() <= pa.offset;
                ASSERT_TRUE(apart) << "nodes " << a << " and " << b;
            }
        }
    }
}

TEST(Buffers, TheArenaIsSmallerThanAllValuesTogether) {
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
    Value x = embed(graph.weight({0, {DType::f32, {100, 32}}}), tokens);
    const uint64_t one = x.type().bytes();
    for (int i = 0; i < 50; ++i) x = scale(x, 2.0f);
    graph.output(OutputId::logits, x);
    EXPECT_LE(place(graph).arena_bytes, 3 * one);
}

TEST(Buffers, OutputsLiveInTheCallersBuffer) {
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
    const Value x = embed(graph.weight({0, {DType::f32, {100, 32}}}), tokens);
    const Value y = scale(x, 2.0f);
    graph.output(OutputId::embeddings, x);
    graph.output(OutputId::logits, y);
    const Buffers buffers = place(graph);
    EXPECT_EQ(buffers.places[x.id].space, Space::output);
    EXPECT_EQ(buffers.places[x.id].index, static_cast<uint8_t>(OutputId::embeddings));
    EXPECT_EQ(buffers.places[y.id].index, static_cast<uint8_t>(OutputId::logits));
    EXPECT_EQ(buffers.arena_bytes, 0u);
}

TEST(Stages, WhatNeedsNothingOfTheOthersRunsWithThem) {
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
    const Value rows = graph.input({InputField::write_rows}, {DType::i32, {16}}, Extent::tokens);
    const Value storage = graph.storage(0, {DType::f32, {64, 32}});
    const Value x = embed(graph.weight({0, {DType::f32, {100, 32}}}), tokens);
    const Value a = scale(x, 2.0f), b = scale(x, 3.0f);
    const Value view = merge_heads(split_heads(a, 4));
    const Value c = softcap(view, 1.0f);  // of a, through a view
    const Value d = store_rows(storage, b, rows);
    const Value e = store_rows(storage, x, rows);  // the same cache again
    const std::vector<uint32_t> stages = find_stages(test::PlainGraph(graph));
    EXPECT_LT(stages[x.id], stages[a.id]);
    EXPECT_EQ(stages[a.id], stages[b.id]);
    EXPECT_LT(stages[b.id], stages[c.id]);
    EXPECT_EQ(stages[c.id], stages[d.id]);
    EXPECT_LT(stages[d.id], stages[e.id]);
}

TEST(Prune, DropsWhatNobodySeesAndKeepsCacheWrites) {  // S4-27: no input is asked for but unused
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {4}}, Extent::tokens);
    const Value rows = graph.input({InputField::write_rows}, {DType::i32, {4}}, Extent::tokens);
    const Value unused = graph.input({InputField::positions}, {DType::i32, {4}}, Extent::tokens);
    rope_table(unused, {.n_rot = 8});
    const Value x = embed(graph.weight({0, {DType::f32, {100, 32}}}), tokens);
    store_rows(graph.storage(0, {DType::f16, {64, 32}}), x, rows);
    scale(x, 3.0f);
    prune(graph);
    std::vector<std::string> names;
    for (const Node& node : graph.nodes()) names.push_back(op_name(node.op));
    EXPECT_EQ(names, (std::vector<std::string>{"input", "input", "weight", "embed", "storage",
                                               "store_rows"}));
}

}  // namespace
}  // namespace plait::buffers_test
