#include "graph/graph.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "graph/ops.h"
#include "graph/plan_key.h"

namespace plait {
namespace {

Value tokens(Graph& graph, int64_t n) {
    return graph.input({InputField::tokens}, {DType::i32, {n}}, Extent::tokens);
}
Weight weight(WeightId id, Shape shape) { return {id, {DType::f32, shape}}; }

Graph small_graph(int64_t n, float epsilon = 1e-5f, int64_t width = 8) {
    Graph graph;
    const Value x = embed(graph.weight(weight(0, {100, width})), tokens(graph, n));
    const Value h = rms_norm(x, graph.weight(weight(1, {width})), epsilon);
    graph.output(OutputId::logits, linear(h, graph.weight(weight(0, {100, width}))));
    return graph;
}

TEST(Graph, EqualRecipesAreEqual) { EXPECT_EQ(small_graph(4), small_graph(4)); }

TEST(Graph, AShapeOrAParameterMakesGraphsDiffer) {
    const std::vector<Graph> graphs{small_graph(4), small_graph(8), small_graph(4, 1e-6f),
                                    small_graph(4, 1e-5f, 16)};
    for (size_t i = 0; i < graphs.size(); ++i)
        for (size_t j = 0; j < graphs.size(); ++j) EXPECT_EQ(graphs[i] == graphs[j], i == j);
}

// Sets every operand that kOperands lists; no other operand may be left over.
template <typename T>
void expect_all_operands_listed() {
    alignas(T) std::array<std::byte, sizeof(T)> bytes{};
    T& op = *new (bytes.data()) T{};
    visit_operands(op, [](NodeId& id) { id = 0; });  // absent ones are not visited
    const auto set = [](auto& self, auto& holder) -> void {
        using Holder = std::remove_reference_t<decltype(holder)>;
        if constexpr (HasOperands<Holder>)
            std::apply([&](auto... members) { (self(self, holder.*members), ...); },
                       Holder::kOperands);
        else
            holder.id = 0;
    };
    set(set, op);
    for (size_t at = 0; at + sizeof(NodeId) <= sizeof(T); at += alignof(NodeId)) {
        NodeId word = 0;
        std::memcpy(&word, &bytes[at], sizeof word);
        EXPECT_NE(word, kNoNode) << T::kInfo.name << " does not list the operand at byte " << at;
    }
}
template <typename... Ops>
void expect_all_operands_listed(const std::variant<Ops...>*) {
    (expect_all_operands_listed<Ops>(), ...);
}

TEST(Op, EveryOpListsAllOfItsOperands) {
    expect_all_operands_listed(static_cast<const Op*>(nullptr));
}

struct OpWithForgottenOperand {
    Operand x, y;
    static constexpr OpInfo kInfo{.name = "forgetful"};
    static constexpr auto kOperands = operands(&OpWithForgottenOperand::x);
    bool operator==(const OpWithForgottenOperand&) const = default;
};

TEST(Op, TheCheckForOperandsCanFail) {
    EXPECT_NONFATAL_FAILURE(expect_all_operands_listed<OpWithForgottenOperand>(),
                            "forgetful does not list the operand at byte 4");
}

template <typename... Ops>
std::vector<std::string> names_of(const std::variant<Ops...>*) {
    return {Ops::kInfo.name...};
}

TEST(Op, NamesAreUnique) {
    const auto names = names_of(static_cast<const Op*>(nullptr));
    EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
}

struct NoOperands {
    Operand x;
    [[maybe_unused]] static constexpr OpInfo kInfo{.name = "incomplete"};
    bool operator==(const NoOperands&) const = default;
};
struct NoInfo {
    Operand x;
    static constexpr auto kOperands = operands(&NoInfo::x);
    bool operator==(const NoInfo&) const = default;
};
static_assert(OpType<OpWithForgottenOperand> && !OpType<NoOperands> && !OpType<NoInfo>);

TEST(Graph, AWeightIsOneNodeHoweverOftenItIsAskedFor) {
    Graph graph;
    const Value a = graph.weight(weight(3, {8}));
    const Value b = graph.weight(weight(3, {8}));
    EXPECT_EQ(a.id, b.id);
    EXPECT_NE(graph.weight(weight(4, {8})).id, a.id);
}

TEST(Graph, ShapesAreCheckedWhereANodeIsAdded) {
    Graph graph;
    const Value x = embed(graph.weight(weight(0, {100, 8})), tokens(graph, 4));
    EXPECT_THROW(linear(x, graph.weight(weight(1, {5, 9}))), InternalError);
    EXPECT_THROW(rms_norm(x, graph.weight(weight(2, {7})), 1e-5f), InternalError);
    EXPECT_THROW(split_heads(x, 3), InternalError);
    EXPECT_THROW(x + graph.weight(weight(3, {9})), InternalError);
}

TEST(Graph, NodesCarryRoleAndLayerAsFields) {  // S1-18, S1-29
    Graph graph;
    const Value x = embed(graph.weight(weight(0, {100, 8})), tokens(graph, 4));
    graph.name(x, Role::attn_out, 3);
    EXPECT_EQ(graph.node(x.id).role, Role::attn_out);
    EXPECT_EQ(graph.node(x.id).layer, 3);
    EXPECT_EQ(full_name(Role::attn_out, 3), "blk.3.attn_out");
    EXPECT_EQ(full_name(Role::result_norm, -1), "result_norm");
}

TEST(PlanKey, BucketsArePowersOfTwoUpToTheLimit) {
    EXPECT_EQ(bucket(0, 512), 0u);
    EXPECT_EQ(bucket(1, 512), 1u);
    EXPECT_EQ(bucket(3, 512), 4u);
    EXPECT_EQ(bucket(8, 512), 8u);
    EXPECT_EQ(bucket(300, 512), 512u);
    EXPECT_EQ(bucket(7, 7), 7u);
    EXPECT_EQ(bucket(5, 7), 7u);
}

TEST(PlanKey, EveryFieldTellsKeysApart) {  // S0-06, S0-15
    const PlanKey base;
    const auto changed = [&](auto change) {
        PlanKey key = base;
        change(key);
        return key;
    };
    const std::vector<PlanKey> keys = {
        base,
        changed([](PlanKey& k) { k.kind = GraphKind::encode; }),
        changed([](PlanKey& k) { k.input = InputKind::embeddings; }),
        changed([](PlanKey& k) { k.output = OutputKind::both; }),
        changed([](PlanKey& k) { k.causal = false; }),
        changed([](PlanKey& k) { k.flash = false; }),
        changed([](PlanKey& k) { k.single = true; }),
        changed([](PlanKey& k) { k.ordered = true; }),
        changed([](PlanKey& k) { k.adapters = 1; }),
        changed([](PlanKey& k) { k.captures = 1; }),
        changed([](PlanKey& k) { k.edits = 1; }),
        changed([](PlanKey& k) { k.control = true; }),
        changed([](PlanKey& k) { k.n_tokens = 1; }),
        changed([](PlanKey& k) { k.n_sequences = 1; }),
        changed([](PlanKey& k) { k.n_outputs = 1; }),
        changed([](PlanKey& k) { k.n_moves = 1; }),
        changed([](PlanKey& k) { k.group = 1; }),
    };
    std::set<size_t> hashes;
    for (size_t i = 0; i < keys.size(); ++i) {
        hashes.insert(PlanKeyHash{}(keys[i]));
        for (size_t j = 0; j < keys.size(); ++j) EXPECT_EQ(keys[i] == keys[j], i == j);
    }
    EXPECT_EQ(hashes.size(), keys.size());
    // A new field must be added above: structured bindings count the fields.
    const auto& [kind, input, output, causal, flash, single, ordered, adapters, captures, edits,
                 control, n_tokens, n_sequences, n_outputs, n_moves, group] = base;
    (void)kind, (void)input, (void)output, (void)causal, (void)flash, (void)single, (void)ordered;
    (void)adapters, (void)edits, (void)control, (void)captures, (void)n_tokens, (void)n_sequences,
        (void)n_outputs, (void)n_moves, (void)group;
}

}  // namespace
}  // namespace plait
