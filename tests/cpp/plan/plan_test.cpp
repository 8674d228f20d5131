// Plans of one and of several devices. Whatever computes which node, a run gives the same bits.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backend/cpu/backend.h"
#include "graph/capture.h"
#include "graph/ops.h"
#include "graph/rewrite.h"
#include "plan/passes.h"
#include "support/plain_graph.h"
#include "support/random_weights.h"

namespace plait::plan_test {
namespace {

constexpr int64_t kRows = 8, kWidth = 32;
constexpr int kLayers = 6;

DeviceSet devices(const std::vector<uint8_t>& layers, size_t n) {
    std::vector<std::unique_ptr<Backend>> backends;
    for (size_t d = 0; d < n; ++d)
        backends.push_back(std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 1}));
    LayerDevices placed{.layers = layers, .caches = layers};
    placed.output = static_cast<uint8_t>(n - 1);
    return DeviceSet(std::move(backends), placed);
}

// A graph of random sums, views and products, each node of a random layer.
Graph random_graph(std::mt19937& random) {
    Graph graph;
    const auto name = [&](Value value) {
        graph.name(value, Role::l_out, static_cast<int>(random() % kLayers));
        return value;
    };
    std::vector<Value> values{
        graph.input({InputField::embeddings}, {DType::f32, {kRows, kWidth}}, Extent::tokens)};
    values.push_back(name(scale(values[0], 0.5f)));
    const Value matrix = graph.weight({0, {DType::q8_0, {kWidth, kWidth}}});
    for (int i = 0; i < 40; ++i) {
        const Value a = values[random() % values.size()], b = values[random() % values.size()];
        switch (random() % 4) {
        case 0: values.push_back(name(merge_heads(scale(split_heads(a, 4), 0.7f)))); break;
        case 1: values.push_back(name(rms_norm(linear(a, matrix), {}, 1e-5f))); break;
        default: values.push_back(name(scale(a + b, 0.5f))); break;
        }
    }
    graph.output(OutputId::embeddings, values[values.size() / 2]);
    graph.output(OutputId::logits, values.back());
    return graph;
}

class Halve final : public Editor {
public:
    void edit(uint16_t, std::span<float> rows, const Shape&, Extent) override {
        for (float& value : rows) value /= 2;
    }
};

struct Result {
    std::vector<float> logits, embeddings;
    std::vector<std::vector<float>> captured;
    bool operator==(const Result&) const = default;
};

Result run(const Graph& graph, DeviceSet devices, int n_runs = 2) {
    const auto weights = std::make_shared<test::RandomWeights>();
    weights->add({DType::q8_0, {kWidth, kWidth}});
    StoresByDevice stores;
    for (size_t d = 0; d < devices.size(); ++d)
        stores.push_back(devices[d].make_weight_store(weights));
    const WeightStores all(stores);
    InputLayout layout;
    layout.add({InputField::embeddings}, kRows * kWidth * sizeof(float));
    Plan plan(graph, {devices, layout, all, {}, {}});

    DeviceBuffers arenas;
    devices.grow(arenas, plan.arena_bytes());
    DeviceBuffers inputs = devices.allocate_inputs(layout.bytes());
    constexpr int64_t kUsed = 5;  // rows of the step
    auto* rows = reinterpret_cast<float*>(inputs.host());
    for (int64_t i = 0; i < kUsed * kWidth; ++i) rows[i] = static_cast<float>((i * 37) % 23) - 11;
    inputs.flush(0, layout.bytes());

    Halve editor;
    Result result;
    for (int i = 0; i < n_runs; ++i) {  // a second run finds what the first one left
        result.logits.assign(kUsed * kWidth, 0.0f);
        result.embeddings.assign(kUsed * kWidth, 0.0f);
        plan.run({.arenas = arenas,
                  .inputs = inputs,
                  .outputs = {reinterpret_cast<std::byte*>(result.logits.data()),
                              reinterpret_cast<std::byte*>(result.embeddings.data())},
                  .counts = {.tokens = kUsed},
                  .editor = &editor});
    }
    result.captured.resize(plan.captured().size());
    for (const CapturedPlace& place : plan.captured()) {
        std::vector<float>& values = result.captured[place.index];
        values.resize(static_cast<size_t>(kUsed * place.type.shape.elements() / kRows));
        const auto bytes = std::as_writable_bytes(std::span(values));
        if (place.address != nullptr)
            std::copy_n(place.address, bytes.size(), bytes.begin());
        else if (place.place.space == Space::output)
            values = place.place.index == 0 ? result.logits : result.embeddings;
        else
            arenas.on(place.device).read(place.place.offset, bytes);
    }
    return result;
}

TEST(Plan, AnyAssignmentToDevicesGivesTheSameBits) {
    std::mt19937 random(5);
    for (int round = 0; round < 60; ++round) {
        Graph graph = random_graph(random);
        const std::vector<NamedValue> named = named_values(graph);
        std::vector<ValueName> edited, kept;
        for (int i = 0; i < 2; ++i) edited.push_back(named[random() % named.size()].name);
        std::vector<EditPoint> points;
        for (uint16_t i = 0; i < edited.size(); ++i) points.push_back({edited[i], true, i});
        insert_edits(graph, points, {}, true);
        const std::vector<NamedValue> after = named_values(graph);
        for (size_t i = 0; i < after.size(); ++i)
            if (random() % 5 == 0) kept.push_back(after[i].name);
        capture(graph, kept, true);
        const Result alone =
            run(graph, std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 1}));
        ASSERT_FALSE(std::ranges::all_of(alone.logits, [](float x) { return x == 0.0f; }));
        for (const size_t n : {2, 3, 5}) {
            std::vector<uint8_t> layers;
            for (int i = 0; i < kLayers; ++i) layers.push_back(static_cast<uint8_t>(random() % n));
            ASSERT_EQ(run(graph, devices(layers, n)), alone) << "round " << round;
        }
    }
}

// A rotation table that the host computed with the layer's input needs no segment of its own.
TEST(Schedule, ASegmentReceivesAllThatHasBeenSent) {
    Graph host, device;
    const auto input = [](Graph& graph) {
        return graph.input({InputField::embeddings}, {DType::f32, {kRows, kWidth}}, Extent::tokens);
    };
    const Value x = scale(input(host), 2.0f), table = scale(input(host), 3.0f);
    host.add(ops::Send{x, 0}, x.type(), x.extent());
    host.add(ops::Send{table, 1}, x.type(), x.extent());
    const Value there = device.add(ops::Receive{0}, x.type(), x.extent());
    const Value y = scale(there, 2.0f);
    const Value late = device.add(ops::Receive{1}, x.type(), x.extent());
    const Value sum = y + late;
    device.add(ops::Send{sum, 2}, x.type(), x.extent());
    host.add(ops::Receive{2}, x.type(), x.extent());
    const test::PlainGraph first(device), second(host);
    const std::vector<const LoweredGraph*> graphs{&first, &second};
    const std::vector<SegmentRange> order = schedule(graphs);
    ASSERT_EQ(order.size(), 3u);
    EXPECT_EQ(order[0].part, 1u);
    EXPECT_EQ(order[1].part, 0u);
    EXPECT_EQ(order[1].end, device.nodes().size());
    EXPECT_EQ(order[2].part, 1u);
}

TEST(Schedule, WhatIsNeverSentIsAnError) {
    Graph graph;
    graph.add(ops::Receive{0}, {DType::f32, {kRows, kWidth}}, Extent::tokens);
    const test::PlainGraph lowered(graph);
    EXPECT_THROW(schedule(std::vector<const LoweredGraph*>{&lowered}), InternalError);
}

}  // namespace
}  // namespace plait::plan_test
