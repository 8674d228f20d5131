// Which nodes the rewrites change. That results keep their bits is shown for whole models, in
// tests/python/context/test_plans.py.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cpu/graph.h"
#include "graph/ops.h"

namespace plait::cpu {
namespace {

constexpr int64_t kTokens = 8, kWidth = 64;

struct Example {
    Graph graph;
    Value x =
        graph.input({InputField::embeddings}, {DType::f32, {kTokens, kWidth}}, Extent::tokens);
    WeightId next = 0;

    Value matrix(DType dtype = DType::q8_0) {
        return graph.weight({next++, {dtype, {kWidth, kWidth}}});
    }
    Value vector() { return graph.weight({next++, {DType::f32, {kWidth}}}); }
    std::vector<std::string> fused() {
        std::vector<std::string> names;
        for (const CpuNode& node : lower(graph, isa_from_name("scalar"), 1, /*fuse=*/true).nodes) {
            const std::string name = info_of(node.op).name;
            if (name != "weight" && name != "input") names.push_back(name);
        }
        return names;
    }
};

using Names = std::vector<std::string>;

TEST(Fuse, ABlockOfAModel) {
    Example e;
    const Value h = rms_norm(e.x, e.vector(), 1e-5f);
    const Value g = linear(h, e.matrix()), up = linear(h, e.matrix());
    const Value y = linear(gate(g, up, Activation::silu), e.matrix(), e.vector());
    e.graph.output(OutputId::logits, e.x + y);
    EXPECT_EQ(e.fused(),
              (Names{"norm_quantize", "linear", "linear", "gate_quantize", "linear_add"}));
}

TEST(Fuse, WhatOthersReadIsNotAbsorbed) {
    Example e;
    const Value h = rms_norm(e.x, e.vector(), 1e-5f);
    const Value y = linear(h, e.matrix());
    e.graph.output(OutputId::logits, y + h);  // reads the norm as it is
    e.graph.output(OutputId::embeddings, y);  // and the product
    EXPECT_EQ(e.fused(), (Names{"rms_norm", "quantize_rows", "linear", "add"}));
}

TEST(Fuse, AnOutputIsNotAbsorbed) {
    Example e;
    const Value h = rms_norm(e.x, e.vector(), 1e-5f);
    e.graph.output(OutputId::embeddings, h);
    e.graph.output(OutputId::logits, linear(h, e.matrix()));
    EXPECT_EQ(e.fused(), (Names{"rms_norm", "quantize_rows", "linear"}));
}

TEST(Fuse, FloatProductsTakeTheNormAsItIs) {
    Example e;
    const Value h = rms_norm(e.x, e.vector(), 1e-5f);
    e.graph.output(OutputId::logits, linear(h, e.matrix(DType::f32)) + e.x);
    EXPECT_EQ(e.fused(), (Names{"rms_norm", "linear_add"}));
}

TEST(Fuse, OneOfTwoProductsIsTheResidual) {
    Example e;
    const Value w = e.matrix(DType::f32);
    e.graph.output(OutputId::logits, linear(e.x, w) + linear(e.x, e.matrix(DType::f32)));
    EXPECT_EQ(e.fused(), (Names{"linear", "linear_add"}));
}

TEST(Fuse, ABiasForEveryRowIsNoResidual) {
    Example e;
    e.graph.output(OutputId::logits, linear(e.x, e.matrix(DType::f32)) + e.vector());
    EXPECT_EQ(e.fused(), (Names{"linear", "add"}));
}

TEST(Fuse, HeadsAreNormalisedOneByOne) {
    Example e;
    const Value heads = rms_norm(split_heads(e.x, 2), {}, 1e-5f);
    e.graph.output(OutputId::logits, linear(merge_heads(heads), e.matrix()));
    EXPECT_EQ(e.fused(), (Names{"reshape", "rms_norm", "reshape", "quantize_rows", "linear"}));
}

}  // namespace
}  // namespace plait::cpu
