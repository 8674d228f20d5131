// What crosses between devices, where it is on each, and that nothing which is still read lies there.
#include "backend/joint/crossings.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "backend/bind_computed.h"
#include "graph/ops.h"
#include "plan/buffers.h"
#include "plan/stages.h"

namespace plait::joint {
namespace {

constexpr uint8_t kHost = 2;

struct Planned {
    Graph graph;
    std::vector<Place> places;
    Crossings crossings;

    explicit Planned(Graph made) : graph(std::move(made)) {
        InputLayout inputs;
        inputs.add({InputField::tokens}, 4096);
        places = place_values(graph, find_stages(graph), inputs).places;
        crossings = find_crossings(graph, places, 3, kHost);
    }
    const Place& on(size_t device, NodeId id) const { return crossings.places[device][id]; }
};

Value tokens(Graph& graph) {
    return graph.input({InputField::tokens}, {DType::i32, {16}}, Extent::tokens);
}
Value table(Graph& graph) { return graph.weight({0, {DType::f32, {100, 32}}}); }
void put(Value value, uint8_t device) { value.graph->set_device(value.id, device); }

bool same(const Place& a, const Place& b) {
    return a.space == b.space && a.id == b.id && a.offset == b.offset;
}

TEST(Crossings, AValueGoesFromTheHostToADeviceAndBack) {
    Graph graph;
    const Value x = embed(table(graph), tokens(graph));
    const Value y = scale(x, 2.0f), z = scale(y, 3.0f);
    put(x, kHost);
    put(y, 0);
    put(z, kHost);
    graph.output(OutputId::logits, z);
    const Planned plan(graph);
    ASSERT_EQ(plan.crossings.copies.size(), 2u);
    const Crossing& there = plan.crossings.copies[0];
    EXPECT_EQ(there.value, x.id);
    EXPECT_EQ(there.to, 0);
    EXPECT_TRUE(same(there.from_place, plan.places[x.id]));
    EXPECT_TRUE(same(there.to_place, {.space = Space::storage, .id = 4}));  // received
    EXPECT_TRUE(same(plan.on(0, x.id), there.to_place));
    const Crossing& back = plan.crossings.copies[1];
    EXPECT_EQ(back.value, y.id);
    EXPECT_EQ(back.to, kHost);
    EXPECT_TRUE(same(back.from_place, {.space = Space::storage, .id = 3}));  // sent
    EXPECT_TRUE(same(back.to_place, plan.places[y.id]));
    EXPECT_EQ(plan.crossings.sent[0], 16u * 32 * 4);
    EXPECT_EQ(plan.crossings.sent[1], 0u);
}

TEST(Crossings, AnOutputIsWithTheCallerAlready) {
    Graph graph;
    const Value x = embed(table(graph), tokens(graph));
    const Value y = scale(x, 2.0f);
    put(x, 0);
    put(y, 1);
    graph.output(OutputId::embeddings, x);
    graph.output(OutputId::logits, y);
    const Planned plan(graph);
    ASSERT_EQ(plan.crossings.copies.size(), 1u);
    EXPECT_EQ(plan.crossings.copies[0].from_place.space, Space::output);
    EXPECT_EQ(plan.crossings.sent[0], 0u);
    EXPECT_EQ(plan.on(0, x.id).space, Space::output);
    EXPECT_EQ(plan.on(1, x.id).space, Space::storage);
}

TEST(Crossings, WhatIsCapturedOrEditedIsOnTheHost) {
    Graph graph;
    const Value x = embed(table(graph), tokens(graph));
    const Value y = scale(x, 2.0f);
    const Value edited = edit(y, 0);
    const Value z = scale(edited, 2.0f);
    for (const Value value : {x, y, z}) put(value, 0);
    put(edited, kHost);
    graph.output(OutputId::first_captured, x);
    graph.output(OutputId::logits, z);
    const Planned plan(graph);
    ASSERT_EQ(plan.crossings.copies.size(), 3u);
    EXPECT_EQ(plan.crossings.copies[0].to, kHost);  // x, to be read when all has run
    EXPECT_EQ(plan.crossings.copies[1].to, kHost);  // y, to be edited
    EXPECT_FALSE(plan.crossings.copies[1].edited);
    EXPECT_EQ(plan.crossings.copies[2].to, 0);  // what was made of it
    EXPECT_TRUE(plan.crossings.copies[2].edited);
}

TEST(Crossings, ViewsFollowTheirValue) {
    Graph graph;
    const Value x = embed(table(graph), tokens(graph));
    const Value heads = split_heads(x, 4);
    const Value y = rms_norm(heads, {}, 1e-5f);
    put(x, kHost);
    put(y, 1);
    graph.output(OutputId::logits, merge_heads(y));
    const Planned plan(graph);
    EXPECT_TRUE(same(plan.on(1, heads.id), plan.on(1, x.id)));
    EXPECT_EQ(plan.on(1, x.id).space, Space::storage);
    EXPECT_EQ(plan.on(kHost, heads.id).space, Space::arena);
}

// Whatever a device finds in what it has sent and received is what was put there last for it.
TEST(Crossings, ValuesThatAreStillReadNeverOverlap) {
    std::mt19937 random(3);
    for (int round = 0; round < 100; ++round) {
        Graph graph;
        std::vector<Value> values{embed(table(graph), tokens(graph))};
        for (int i = 0; i < 60; ++i) {
            const Value a = values[random() % values.size()], b = values[random() % values.size()];
            values.push_back(random() % 4 == 0 ? merge_heads(split_heads(a, 4)) : a + b);
        }
        graph.output(OutputId::logits, values.back());
        for (NodeId i = 0; i < graph.nodes().size(); ++i)
            graph.set_device(i, static_cast<uint8_t>(random() % (kHost + 1)));
        const Planned plan(graph);
        const Crossings& c = plan.crossings;
        // holder[d][id]: by offset / 128, whose bytes are there; written when a run has ended.
        std::map<std::tuple<size_t, uint32_t, uint64_t>, NodeId> holder;
        const auto hold = [&](size_t device, const Place& place, NodeId value) {
            const uint64_t bytes = graph.node(value).type.bytes();
            for (uint64_t at = place.offset; at < place.offset + bytes; at += 128)
                holder[{device, place.id, at}] = value;
        };
        for (NodeId i = 0; i < graph.nodes().size(); ++i) {
            const Node& node = plan.graph.node(i);
            if (!computes(node)) continue;
            for_each_operand(node.op, [&](NodeId operand) {
                const Place& place = plan.on(node.device, operand);
                if (place.space != Space::storage) return;
                const NodeId root = c.root[operand];
                const uint64_t bytes = graph.node(root).type.bytes();
                for (uint64_t at = place.offset; at < place.offset + bytes; at += 128)
                    ASSERT_EQ((holder[{node.device, place.id, at}]), root);
            });
            if (const Place& place = plan.on(node.device, i); place.space == Space::storage)
                hold(node.device, place, i);
            for (const Crossing& copy : c.copies)
                if (copy.value == i && copy.to_place.space == Space::storage)
                    hold(copy.to, copy.to_place, i);
        }
    }
}

}  // namespace
}  // namespace plait::joint
