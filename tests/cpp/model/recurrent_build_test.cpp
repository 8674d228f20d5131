// Graphs of recurrent models: which states they read and write.
#include <gtest/gtest.h>

#include <map>

#include "gguf/writer.h"
#include "memory/memory.h"
#include "model/model.h"
#include "runtime/loaded_model.h"

namespace plait {
namespace {

// Files with zero weights; graphs depend on shapes only.
class Zeros {
public:
    explicit Zeros(std::string arch) : arch_(std::move(arch)) {
        writer_.string("general.architecture", arch_).string("tokenizer.ggml.model", "no_vocab");
        key("block_count", 3).key("embedding_length", 32).key("feed_forward_length", 48);
        weights("", {{"token_embd", {40, 32}}, {"output_norm", {32}}});
    }
    Zeros& key(const std::string& name, uint32_t value) {
        writer_.number(arch_ + "." + name, gguf::ValueType::u32, value);
        return *this;
    }
    Zeros& epsilon(const std::string& name) {
        writer_.number(arch_ + ".attention." + name, gguf::ValueType::f32, 1e-5f);
        return *this;
    }
    using Shapes = std::vector<std::pair<std::string, std::vector<uint64_t>>>;
    Zeros& layers(const Shapes& shapes) {
        for (int i = 0; i < 3; ++i) weights("blk." + std::to_string(i) + ".", shapes);
        return *this;
    }
    Zeros& weights(const std::string& prefix, const Shapes& shapes) {
        for (const auto& [name, shape] : shapes) {
            uint64_t n = 1;
            for (const uint64_t size : shape) n *= size;
            const bool bare =
                name.starts_with("ssm_a") || name == "ssm_d" || name.ends_with(".bias");
            writer_.tensor(prefix + name + (bare ? "" : ".weight"), {shape.rbegin(), shape.rend()},
                           DType::f32, std::string(n * sizeof(float), '\0'));
        }
        return *this;
    }
    std::shared_ptr<const LoadedModel> open() const {
        const test::TempFolder folder;
        return LoadedModel::open(folder.write("zeros.gguf", writer_.bytes()), {});
    }

private:
    std::string arch_;
    test::GgufWriter writer_;
};

Zeros mamba() {
    Zeros file("mamba");
    file.key("ssm.conv_kernel", 4).key("ssm.inner_size", 64).key("ssm.state_size", 8);
    file.key("ssm.time_step_rank", 4).epsilon("layer_norm_rms_epsilon");
    return file.layers({{"attn_norm", {32}},
                        {"ssm_in", {128, 32}},
                        {"ssm_conv1d", {64, 4}},
                        {"ssm_conv1d.bias", {64}},
                        {"ssm_x", {20, 64}},
                        {"ssm_dt", {64, 4}},
                        {"ssm_dt.bias", {64}},
                        {"ssm_a", {64, 8}},
                        {"ssm_d", {64}},
                        {"ssm_out", {32, 64}}});
}

Zeros rwkv7() {
    Zeros file("rwkv7");
    file.key("wkv.head_size", 16).epsilon("layer_norm_epsilon");
    for (const char* lora : {"decay", "iclr", "value_residual_mix", "gate"})
        file.key(std::string("attention.") + lora + "_lora_rank", 4);
    file.weights("", {{"token_embd_norm", {32}}});
    Zeros::Shapes shapes = {{"attn_norm", {32}},
                            {"attn_norm_2", {32}},
                            {"time_mix_ln", {32}},
                            {"time_mix_lerp_fused", {6, 1, 1, 32}},
                            {"channel_mix_lerp_k", {1, 1, 32}},
                            {"channel_mix_key", {48, 32}},
                            {"channel_mix_value", {32, 48}}};
    for (const char* name : {"key", "value", "receptance", "output"})
        shapes.push_back({std::string("time_mix_") + name, {32, 32}});
    for (const char* name : {"w", "a", "v", "g"}) {
        shapes.push_back({std::string("time_mix_") + name + "0", {32}});
        shapes.push_back({std::string("time_mix_") + name + "1", {4, 32}});
        shapes.push_back({std::string("time_mix_") + name + "2", {32, 4}});
    }
    for (const char* name : {"k_k", "k_a", "r_k"})
        shapes.push_back({std::string("time_mix_") + name, {32}});
    return file.layers(shapes);
}

class RecurrentBuild : public testing::TestWithParam<Zeros (*)()> {
protected:
    std::shared_ptr<const LoadedModel> model = GetParam()().open();
    MemoryLayout layout = make_memory(model->model().memory_specs(), {.n_seq_max = 4})->layout();
    Graph build(int64_t n_outputs) const {
        const PlanKey key{.output = n_outputs > 0 ? OutputKind::logits : OutputKind::none,
                          .n_tokens = 8,
                          .n_sequences = 4,
                          .n_outputs = static_cast<uint32_t>(n_outputs)};
        return model->model().build(key, layout, {});
    }
};

TEST_P(RecurrentBuild, EachStateIsWrittenOnceAndNamed) {  // S4-42, S1-30
    for (const int64_t n_outputs : {4, 0}) {
        const Graph graph = build(n_outputs);
        std::map<uint32_t, int> written;
        for (const Node& node : graph.nodes()) {
            if (!writes_storage(node.op)) continue;
            EXPECT_NE(node.role, Role::none) << op_name(node.op);
            EXPECT_GE(node.layer, 0) << op_name(node.op);
            for_each_operand(node.op, [&](NodeId operand) {
                if (const auto* storage = std::get_if<ops::Storage>(&graph.node(operand).op)) {
                    ++written[storage->index];
                    EXPECT_EQ(layout.storage[storage->index].id.layer, node.layer);
                }
            });
        }
        EXPECT_EQ(written.size(), layout.storage.size());
        for (const auto& [index, times] : written) EXPECT_EQ(times, 1) << index;
    }
}

TEST_P(RecurrentBuild, PositionsAreNotAnInput) {  // S1-36
    const Graph graph = build(4);
    for (const Node& node : graph.nodes()) {
        const auto* input = std::get_if<ops::Input>(&node.op);
        EXPECT_FALSE(input != nullptr && input->id.field == InputField::positions);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentBuild, testing::Values(mamba, rwkv7));

}  // namespace
}  // namespace plait
