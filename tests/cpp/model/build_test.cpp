#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <vector>

#include "memory/memory.h"
#include "model/model.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

struct Built {
    std::shared_ptr<const LoadedModel> model = test::TinyModel{}.open();
    MemoryLayout layout = make_memory(model->model().memory_specs(), {.n_ctx = 64})->layout();
    Graph build(const PlanKey& key) const {
        return model->model().build(key, layout, {.n_ctx = 64});
    }
};

PlanKey random_key(std::mt19937& random) {
    PlanKey key;
    key.input = static_cast<InputKind>(random() % 2);
    key.n_tokens = 1u << random() % 8;
    key.n_sequences = 1u << random() % 3;
    key.n_outputs = random() % 2 ? 1u << random() % 4 : 0;
    key.output = key.n_outputs == 0 ? OutputKind::none : static_cast<OutputKind>(1 + random() % 3);
    key.flash = random() % 2;
    return key;
}

// Removes the roles of nodes, so that graphs differing only in roles compare as equal.
Graph without_names(Graph graph) {
    for (NodeId i = 0; i < graph.nodes().size(); ++i) graph.name({&graph, i}, Role::none);
    return graph;
}

TEST(Build, EqualKeysGiveEqualGraphsAndOthersDoNot) {  // S0-05, S1-39
    const Built built;
    std::mt19937 random(11);
    std::vector<std::pair<PlanKey, Graph>> seen;
    for (int i = 0; i < 300; ++i) {
        const PlanKey key = random_key(random);
        const Graph graph = built.build(key);
        EXPECT_EQ(built.build(key), graph);
        seen.emplace_back(key, without_names(graph));
        for (const auto& [other_key, other] : seen)
            EXPECT_EQ(other == seen.back().second, other_key == key);
    }
}

// Builders get a plan key but no batch, so no row, position or sequence id can be part of a
// graph.  S0-05, S1-39, S4-43
TEST(Build, EqualKeysGiveEqualGraphsInEveryArchitecture) {
    const char* data = std::getenv("PLAIT_TEST_DATA");
    const std::filesystem::path folder = std::filesystem::path(data ? data : "") / "conformance";
    if (!std::filesystem::is_directory(folder))
        GTEST_SKIP() << "PLAIT_TEST_DATA is not set to the folder of the reference data";
    std::mt19937 random(12);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        SCOPED_TRACE(entry.path().filename());
        const auto loaded = LoadedModel::open((entry.path() / "model.gguf").string(), {});
        const Model& model = loaded->model();
        const BuildOptions options{.n_ctx = 64, .n_pos_per_token = model.info().n_pos_per_token};
        const auto memory = [&] {
            return make_memory(model.memory_specs(),
                               {.n_ctx = 64, .n_seq_max = 4, .axes = options.n_pos_per_token});
        };
        const auto one = memory(), other = memory();
        for (int i = 0; i < 40; ++i) {
            PlanKey key = random_key(random);
            if (!model.info().has_decoder || (model.info().has_encoder && random() % 2))
                key.kind = GraphKind::encode;
            const Graph graph = model.build(key, one->layout(), options);
            EXPECT_EQ(model.build(key, other->layout(), options), graph);
            key.n_tokens *= 2;
            EXPECT_NE(without_names(model.build(key, one->layout(), options)),
                      without_names(graph));
        }
    }
}

TEST(Build, EachLayerWritesKeysAndValuesOnce) {  // S1-34, S1-30
    const Built built;
    std::multiset<uint32_t> written;
    const Graph graph = built.build({.n_tokens = 4, .n_sequences = 1, .n_outputs = 1});
    for (const Node& node : graph.nodes())
        if (const auto* store = std::get_if<ops::StoreRows>(&node.op))
            written.insert(std::get<ops::Storage>(graph.node(store->storage).op).index);
    EXPECT_EQ(written, (std::multiset<uint32_t>{0, 1, 2, 3}));
}

// Rows that move are data of a run, so no number of moves is too many for a graph.  S3-05, S3-26
TEST(Build, TheCopyGraphHasTheSameNodesForAnyNumberOfMoves) {
    for (const int n_layers : {1, 32, 80}) {
        const auto model = test::TinyModel{.n_layers = n_layers, .width = 16, .n_ffn = 8}.open();
        const MemoryLayout layout =
            make_memory(model->model().memory_specs(), {.n_ctx = 64})->layout();
        for (const uint32_t n_moves : {1u, 8u, 1024u, 1u << 20}) {
            const Graph graph = model->model().build(
                {.kind = GraphKind::copy_rows, .n_moves = n_moves}, layout, {.n_ctx = 64});
            // The row lists `from` and `to`; per layer, storage and copy for keys and for values.
            EXPECT_EQ(graph.nodes().size(), 2u + 4u * static_cast<size_t>(n_layers));
        }
    }
}

TEST(Build, WithoutOutputsThereIsNoProjection) {  // S4-34
    const Built built;
    const Graph with = built.build({.n_tokens = 4, .n_sequences = 1, .n_outputs = 4});
    const Graph without =
        built.build({.output = OutputKind::none, .n_tokens = 4, .n_sequences = 1, .n_outputs = 0});
    EXPECT_EQ(with.outputs().size(), 1u);
    EXPECT_TRUE(without.outputs().empty());
    for (const Node& node : without.nodes()) EXPECT_NE(node.role, Role::result_output);
}

TEST(Build, ContradictoryMetadataIsRefusedByName) {
    const auto refusal = [](auto damage) -> std::string {
        test::GgufWriter writer = test::TinyModel{}.writer();
        damage(writer);
        const test::TempFolder folder;
        try {
            LoadedModel::open(folder.write("bad.gguf", writer.bytes()), {});
        } catch (const ModelError& e) {
            return e.what();
        }
        return "accepted";
    };
    const auto set = [](const char* key, uint32_t value) {
        return [=](test::GgufWriter& w) {
            std::erase_if(w.entries, [&](const auto& entry) { return entry.key == key; });
            w.number(key, gguf::ValueType::u32, value);
        };
    };
    const auto drop = [](const char* key) {
        return [=](test::GgufWriter& w) {
            std::erase_if(w.entries, [&](const auto& entry) { return entry.key == key; });
        };
    };
    const auto names = [](const std::string& message, const char* what) {
        EXPECT_NE(message.find(what), std::string::npos) << message;
    };
    names(refusal(set("llama.block_count", 0)), "llama.block_count");
    names(refusal(set("llama.block_count", 1)), "llama.block_count");
    names(refusal(set("llama.block_count", 3)), "blk.2.attn_norm.weight");
    names(refusal(set("llama.block_count", 1u << 30)), "llama.block_count");
    names(refusal(set("llama.attention.head_count", 0)), "llama.attention.head_count");
    names(refusal(set("llama.attention.head_count", 3)), "llama.attention.head_count");
    names(refusal(set("llama.attention.head_count_kv", 3)), "llama.attention.head_count_kv");
    names(refusal(set("llama.embedding_length", 72)), "token_embd.weight");
    names(refusal(set("llama.vocab_size", 81)), "llama.vocab_size");
    names(refusal(set("llama.rope.dimension_count", 7)), "llama.rope.dimension_count");
    names(refusal(drop("llama.feed_forward_length")), "llama.feed_forward_length");
    names(refusal(drop("tokenizer.ggml.model")), "tokenizer.ggml.model");
    names(refusal([](test::GgufWriter& w) { w.tensors.pop_back(); }), "blk.1.ffn_down.weight");
}

TEST(Build, AnUnknownArchitectureIsRefusedAndKnownOnesAreListed) {
    test::GgufWriter writer = test::TinyModel{}.writer();
    for (auto& entry : writer.entries)
        if (entry.key == "general.architecture") entry.payload = test::raw_string("abacus");
    const test::TempFolder folder;
    try {
        LoadedModel::open(folder.write("bad.gguf", writer.bytes()), {});
        FAIL();
    } catch (const UnsupportedError& e) {
        EXPECT_NE(std::string(e.what()).find("abacus"), std::string::npos);
        EXPECT_NE(std::string(e.what()).find("llama"), std::string::npos);
    }
}

}  // namespace
}  // namespace plait
