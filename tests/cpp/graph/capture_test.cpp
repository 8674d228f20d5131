#include "graph/capture.h"

#include <gtest/gtest.h>

#include "graph/ops.h"

namespace plait {
namespace {

TEST(Capture, NamesTellEqualRolesApart) {
    Graph graph;
    const Value tokens = graph.input({InputField::tokens}, {DType::i32, {4}}, Extent::tokens);
    const Value x = embed(graph.weight({0, {DType::f32, {10, 8}}}), tokens);
    graph.name(x, Role::inp_embd);
    const Value first = x + x, second = first + x;
    graph.name(first, Role::q, 3);
    graph.name(second, Role::q, 3);
    std::vector<std::string> names;
    for (const NamedValue& value : named_values(graph)) names.push_back(full_name(value.name));
    EXPECT_EQ(names, (std::vector<std::string>{"inp_embd", "blk.3.q", "blk.3.q.2"}));

    const std::vector<ValueName> wanted{{Role::k, 3}, {Role::q, 3, 1}, {Role::inp_embd}};
    capture(graph, wanted, true);
    const std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                           graph.outputs().end());
    EXPECT_EQ(outputs, (std::vector<std::pair<OutputId, NodeId>>{{captured(1), second.id},
                                                                 {captured(2), x.id}}));
}

TEST(Capture, WhatOnlyOutputsHaveIsLeftOutWithoutThem) {
    Graph graph;
    const Value x = graph.input({InputField::embeddings}, {DType::f32, {4, 8}}, Extent::tokens);
    graph.name(x + x, Role::result_norm);
    const std::vector<ValueName> wanted{{Role::result_norm}};
    capture(graph, wanted, false);
    EXPECT_TRUE(graph.outputs().empty());
    capture(graph, wanted, true);
    EXPECT_EQ(graph.outputs().size(), 1u);
}

}  // namespace
}  // namespace plait
