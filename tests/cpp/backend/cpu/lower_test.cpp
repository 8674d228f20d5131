#include "backend/cpu/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "graph/ops.h"

namespace plait::cpu {
namespace {

Value weight(Graph& graph, WeightId id, DType dtype, Shape shape) {
    return graph.weight(Weight{id, {dtype, shape}});
}
Value values(Graph& graph, Shape shape) {
    return graph.input({InputField::embeddings}, {DType::f32, shape}, Extent::tokens);
}
int count_rounded(const Lowered& lowered) {
    int n = 0;
    for (const CpuNode& node : lowered.nodes) n += std::holds_alternative<QuantizeRows>(node.op);
    return n;
}

TEST(Lower, ProductsOfOneInputShareItsRounding) {
    Graph graph;
    const Value x = values(graph, {4, 64});
    const Value a = linear(x, weight(graph, 0, DType::q8_0, {32, 64}));
    const Value b = linear(x, weight(graph, 1, DType::q4_0, {32, 64}));
    const Value y = linear(a * b, weight(graph, 2, DType::q4_0, {16, 32}));
    graph.name(y, Role::result_output);
    graph.output(OutputId::logits, y);
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, /*fuse=*/false);

    EXPECT_EQ(count_rounded(lowered), 2);
    for (NodeId id = 0; id < lowered.nodes.size(); ++id) {
        const CpuNode& node = lowered.nodes[id];
        for_each_operand(node.op, [id](NodeId operand) { EXPECT_LT(operand, id); });
        if (const auto* linear = std::get_if<ops::Linear>(&node.op)) {
            const CpuNode& rounded = lowered.nodes[linear->x];
            const auto* quantize = std::get_if<QuantizeRows>(&rounded.op);
            ASSERT_NE(quantize, nullptr);
            EXPECT_EQ(rounded.type.shape[-1], lowered.nodes[quantize->x].type.shape[-1] / 32 * 10);
            EXPECT_EQ(rounded.extent, Extent::tokens);
        }
    }
    const CpuNode& output = lowered.nodes[lowered.outputs[0].second];
    EXPECT_EQ(output.role, Role::result_output);
    EXPECT_EQ(output.type.shape, (Shape{4, 16}));
}

TEST(Lower, FloatProductsStayAsTheyAre) {
    Graph graph;
    const Value x = values(graph, {4, 7});
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        graph.output(OutputId::logits,
                     linear(x, weight(graph, static_cast<WeightId>(dtype), dtype, {3, 7})));
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, /*fuse=*/true);
    ASSERT_EQ(lowered.nodes.size(), graph.nodes().size());
    for (NodeId id = 0; id < lowered.nodes.size(); ++id) {
        const auto unchanged = [](const auto& op) -> CpuOp { return op; };
        EXPECT_EQ(lowered.nodes[id].op, std::visit(unchanged, graph.node(id).op));
        EXPECT_EQ(lowered.nodes[id].type, graph.node(id).type);
    }
}

// With tiles, the rows of a product with F16 or BF16 weights are rounded, once for each form.
TEST(Lower, TilesTakeRoundedRows) {
    Graph graph;
    const Value x = values(graph, {4, 40});
    WeightId next = 0;
    for (const DType dtype : {DType::bf16, DType::f16, DType::bf16, DType::f32})
        graph.output(OutputId::logits, linear(x, weight(graph, next++, dtype, {3, 40})));
    IsaInfo isa = isa_row("scalar");
    isa.has_tiles = true;
    const Lowered lowered = lower(graph, &isa, 2, /*fuse=*/true);
    std::vector<int64_t> words;
    for (const CpuNode& node : lowered.nodes) {
        if (std::holds_alternative<RoundRows>(node.op)) words.push_back(node.type.shape[-1]);
        EXPECT_FALSE(std::holds_alternative<QuantizeRows>(node.op));
    }
    EXPECT_EQ(words, (std::vector<int64_t>{2 * 16, 2 * 2 * 16}));
}

// The sum reads x itself, the product its rounded rows.
TEST(Lower, AResidualThatIsAlsoMultipliedIsNotRounded) {
    Graph graph;
    const Value x = values(graph, {4, 64});
    graph.output(OutputId::logits, x + linear(x, weight(graph, 0, DType::q8_0, {64, 64})));
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, /*fuse=*/true);
    const auto* op = std::get_if<ops::LinearAdd>(&lowered.nodes[lowered.outputs[0].second].op);
    ASSERT_NE(op, nullptr);
    EXPECT_TRUE(std::holds_alternative<QuantizeRows>(lowered.nodes[op->x].op));
    EXPECT_TRUE(std::holds_alternative<ops::Input>(lowered.nodes[op->residual].op));
}

TEST(Lower, HeadsTakeRoundedRows) {
    Graph graph;
    const Value x = graph.input({InputField::embeddings}, {DType::f32, {4, 3, 64}}, Extent::tokens);
    const Value y = head_linear(x, weight(graph, 0, DType::q8_0, {3, 32, 64}));
    graph.output(OutputId::logits, head_linear(y, weight(graph, 1, DType::bf16, {3, 5, 32})));
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, /*fuse=*/true);
    EXPECT_EQ(count_rounded(lowered), 1);
    for (const CpuNode& node : lowered.nodes) {
        if (!std::holds_alternative<QuantizeRows>(node.op)) continue;
        EXPECT_EQ(node.type.dtype, DType::i32);
        EXPECT_EQ(node.type.shape, (Shape{4, 3, 20}));
    }
}

TEST(Lower, ExpertsTakeRoundedRows) {
    Graph graph;
    const Value x = values(graph, {4, 64});
    const Value routes =
        route(linear(x, weight(graph, 0, DType::f32, {8, 64})), RouteParams{2, true, 1.0f});
    const Value up = expert_linear(x, weight(graph, 1, DType::mxfp4, {8, 96, 64}), routes);
    const Value down = expert_linear(up, weight(graph, 2, DType::mxfp4, {8, 64, 96}), routes);
    graph.output(OutputId::logits, combine(down, routes));
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, /*fuse=*/true);
    EXPECT_EQ(count_rounded(lowered), 2);
    for (const CpuNode& node : lowered.nodes) {
        const auto* product = std::get_if<ops::ExpertLinear>(&node.op);
        if (product == nullptr) continue;
        EXPECT_EQ(lowered.nodes[product->x].type.dtype, DType::i32);
    }
}

// Where a cache has rows for more than one split of the keys, and threads share the work; keys of
// an encoder are as many as its tokens, which are tasks enough.
TEST(Lower, AttentionOverManyRowsTakesSumsOfSplits) {
    const auto splits = [](int64_t rows, bool flash, bool stored, int threads) {
        Graph graph;
        const auto list = [&](InputField field, Shape shape, Extent extent) {
            return graph.input({field}, {DType::i32, shape}, extent);
        };
        AttendInputs in;
        in.q = graph.input({InputField::embeddings}, {DType::f32, {4, 2, 8}}, Extent::tokens);
        in.keys = stored ? graph.storage(0, {DType::f16, {rows, 8}})
                         : merge_heads(graph.input({InputField::embeddings, 1},
                                                   {DType::f32, {rows, 1, 8}}, Extent::tokens));
        in.values = in.keys;
        in.token_begin = list(InputField::token_begin, {2}, Extent::fixed);
        in.runs = list(InputField::runs, {8, 4}, Extent::fixed);
        in.run_begin = list(InputField::run_begin, {2}, Extent::fixed);
        in.first = list(InputField::first, {4}, Extent::tokens);
        in.last = list(InputField::last, {4}, Extent::tokens);
        graph.output(OutputId::logits, attend(in, AttendParams{.n_heads = 2,
                                                               .n_kv_heads = 1,
                                                               .key_dim = 8,
                                                               .value_dim = 8,
                                                               .scale = 1.0f,
                                                               .softcap = 0.0f,
                                                               .flash = flash}));
        const Lowered lowered = lower(graph, isa_from_name("scalar"), threads, /*fuse=*/true);
        int n = 0;
        for (const CpuNode& node : lowered.nodes) {
            if (!std::holds_alternative<AttendSplits>(node.op)) continue;
            ++n;
            EXPECT_EQ(node.extent, Extent::fixed);
            const CpuNode& output = lowered.nodes[lowered.outputs[0].second];
            const auto* merge = std::get_if<AttendMerge>(&output.op);
            EXPECT_TRUE(merge != nullptr && &lowered.nodes[merge->splits] == &node);
        }
        return n;
    };
    EXPECT_EQ(splits(4096, true, true, 2), 1);
    EXPECT_EQ(splits(4096, true, true, 1), 0);
    EXPECT_EQ(splits(4096, false, true, 2), 0);
    EXPECT_EQ(splits(4096, true, false, 2), 0);
    EXPECT_EQ(splits(256, true, true, 2), 0);
}

// The ops of a layer whose cache stores the Hadamard transform of heads.
std::vector<std::string> ops_of_transforms(bool fuse, bool reads_rotated) {
    Graph graph;
    const auto list = [&](InputField field, Shape shape, Extent extent) {
        return graph.input({field}, {DType::i32, shape}, extent);
    };
    const Value x = values(graph, {4, 2, 32});
    const Rope how{.n_rot = 32};
    const Value table = rope_table(list(InputField::positions, {4}, Extent::tokens), how);
    const Value rows = list(InputField::write_rows, {4}, Extent::tokens);
    const Value rotated = rope(x, table, how);
    AttendInputs in;
    in.keys = store_rows(graph.storage(0, {DType::q8_0, {256, 64}}),
                         hadamard(rope(x, table, how), 32), rows);
    in.values = store_rows(graph.storage(1, {DType::q8_0, {256, 64}}), hadamard(x, 32), rows);
    in.q = hadamard(rotated, 32);
    in.token_begin = list(InputField::token_begin, {2}, Extent::fixed);
    in.runs = list(InputField::runs, {8, 4}, Extent::fixed);
    in.run_begin = list(InputField::run_begin, {2}, Extent::fixed);
    in.first = list(InputField::first, {4}, Extent::tokens);
    in.last = list(InputField::last, {4}, Extent::tokens);
    const AttendParams params{.n_heads = 2,
                              .n_kv_heads = 2,
                              .key_dim = 32,
                              .value_dim = 32,
                              .scale = 1.0f,
                              .softcap = 0.0f,
                              .flash = true};
    const Value heads = hadamard(attend(in, params), 32);
    graph.name(heads, Role::attn_heads, 3);
    graph.output(OutputId::logits, reads_rotated ? heads + rotated : heads);
    const Lowered lowered = lower(graph, isa_from_name("scalar"), 2, fuse);
    std::vector<std::string> names;
    for (const CpuNode& node : lowered.nodes) {
        const OpInfo& info = info_of(node.op);
        if (info.kind == OpKind::kernel) names.emplace_back(info.name);
        if (std::string_view(info.name).starts_with("attend_h")) {
            EXPECT_EQ(node.role, Role::attn_heads);
            EXPECT_EQ(node.layer, 3);
        }
    }
    return names;
}

TEST(Lower, TransformsOfQuantisedCachesJoinTheOpsBesideThem) {
    using testing::ElementsAre;
    EXPECT_THAT(ops_of_transforms(true, false),
                ElementsAre("rope_table", "rope_hadamard", "rope_hadamard", "store_rows",
                            "store_hadamard", "attend_hadamard"));
    // A rotated value that something else reads is kept.
    EXPECT_THAT(ops_of_transforms(true, true),
                ElementsAre("rope_table", "rope", "rope_hadamard", "store_rows", "store_hadamard",
                            "hadamard", "attend_hadamard", "add"));
    EXPECT_THAT(ops_of_transforms(false, false),
                ElementsAre("rope_table", "rope", "rope", "hadamard", "store_rows", "hadamard",
                            "store_rows", "hadamard", "attend", "hadamard"));
}

}  // namespace
}  // namespace plait::cpu
