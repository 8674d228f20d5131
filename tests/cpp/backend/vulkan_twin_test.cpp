// Operations on the Vulkan backend against the same on the CPU: whole graphs of one operation, run by
// both from the same bytes. Whole models are compared in tests/python/test_vulkan.py.
#ifdef PLAIT_HAS_VULKAN

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend.h"
#include "backend/vulkan/backend.h"
#include "backend/vulkan/devices.h"
#include "graph/ops.h"
#include "plan/plan.h"
#include "support/random_weights.h"

namespace plait {
namespace {

constexpr int64_t kCapacity = 16, kWidth = 48;  // of the values that operations work on

std::vector<float> random_floats(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& value : values) value = 2 * normal(random);
    return values;
}

// A graph with its inputs, weights and caches, and what a run makes of them.
class Twin {
public:
    explicit Twin(int64_t capacity = kCapacity) : capacity_(capacity) {}

    Graph graph;
    Counts counts{.tokens = 13, .outputs = 13, .sequences = 1, .moves = 0};

    Value floats(int64_t width = kWidth) {
        add({InputField::embeddings}, random_floats(static_cast<size_t>(capacity_ * width), 7));
        return graph.input({InputField::embeddings}, {DType::f32, {capacity_, width}},
                           Extent::tokens);
    }
    Value ints(InputField field, const std::vector<int32_t>& values, Extent extent) {
        add({field}, values);
        return graph.input({field}, {DType::i32, {static_cast<int64_t>(values.size())}}, extent);
    }
    Value weight(const Shape& shape, DType dtype = DType::f32) {
        const TensorType type{dtype, shape};
        return graph.weight({weights_->add(type), type});
    }
    Value cache(DType dtype, int64_t rows, int64_t width) {
        caches_.push_back({dtype, {rows, width}});
        return graph.storage(static_cast<uint32_t>(caches_.size() - 1), caches_.back());
    }

    struct Result {
        std::vector<float> values;                   // rows of the output
        std::vector<std::vector<std::byte>> caches;  // as the run left them
    };
    Result run(Backend& backend) const {
        std::vector<std::unique_ptr<Buffer>> storage;
        std::vector<Buffer*> pointers;
        for (const TensorType& type : caches_) {
            storage.push_back(backend.allocate(type.bytes()));
            storage.back()->write(0, test::random_bytes(type, 3));
            pointers.push_back(storage.back().get());
        }
        const WeightStores stores(backend.make_weight_store(weights_));
        Plan plan(graph, backend, layout_, stores, pointers);
        const auto arena = backend.allocate(plan.arena_bytes());
        const auto inputs = backend.allocate_inputs(layout_.bytes());
        for (const auto& [id, bytes] : inputs_) inputs->write(layout_.offset(id), bytes);

        Result result;
        for (const auto& [id, node] : graph.outputs()) {
            const Shape& shape = graph.node(node).type.shape;
            result.values.resize(static_cast<size_t>(shape.elements() / shape[0] * counts.tokens));
        }
        RunArguments arguments{.arena = arena.get(), .inputs = inputs.get(), .counts = counts};
        arguments.outputs[0] = reinterpret_cast<std::byte*>(result.values.data());
        plan.run(arguments);
        for (const auto& buffer : storage) {
            std::vector<std::byte>& bytes = result.caches.emplace_back(buffer->bytes());
            buffer->read(0, bytes);
        }
        return result;
    }

private:
    template <typename T>
    void add(InputId id, const std::vector<T>& values) {
        const auto bytes = std::as_bytes(std::span(values));
        layout_.add(id, bytes.size());
        inputs_.emplace_back(id, std::vector<std::byte>(bytes.begin(), bytes.end()));
    }

    int64_t capacity_;  // rows
    std::shared_ptr<test::RandomWeights> weights_ = std::make_shared<test::RandomWeights>();
    std::vector<TensorType> caches_;
    InputLayout layout_;
    std::vector<std::pair<InputId, std::vector<std::byte>>> inputs_;
};

class VulkanTwin : public testing::Test {
protected:
    void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        GTEST_SKIP() << "drivers keep memory and threads of their own, which sanitizers report";
#endif
        setenv("PLAIT_VULKAN_CACHE", "off", /*overwrite=*/0);
        if (vulkan::devices().empty()) GTEST_SKIP() << "no Vulkan device";
        vulkan_ = vulkan::make_backend(0);
    }
    struct Results {
        Twin::Result cpu, vulkan;
    };
    Results run(const Twin& twin) { return {twin.run(cpu_), twin.run(*vulkan_)}; }

    void expect_near(const Twin& twin, float tolerance, const std::string& what = {}) {
        const Results results = run(twin);
        ASSERT_FALSE(results.cpu.values.empty());
        float most = 0;
        for (const float value : results.cpu.values) most = std::max(most, std::abs(value));
        for (size_t i = 0; i < results.cpu.values.size(); ++i)
            ASSERT_NEAR(results.vulkan.values[i], results.cpu.values[i], tolerance * most)
                << what << " element " << i;
    }

    cpu::CpuBackend cpu_{cpu::CpuOptions{.threads = 1, .isa = "scalar"}};
    std::unique_ptr<Backend> vulkan_;
};

TEST_F(VulkanTwin, ElementByElement) {
    using Make = std::function<Value(Twin&, Value)>;
    std::vector<std::pair<std::string, Make>> ops = {
        {"add", [](Twin& t, Value x) { return x + t.weight({kWidth}); }},
        {"subtract a row's number", [](Twin&, Value x) { return x - row_sum(x); }},
        {"multiply", [](Twin&, Value x) { return x * scale(x, 0.3f, 1.0f); }},
        {"softcap", [](Twin&, Value x) { return softcap(x, 3.0f); }},
        {"clamped_swiglu",
         [](Twin&, Value x) { return clamped_swiglu(x, scale(x, -1.5f), 1.7f, 2.0f); }},
        {"slice", [](Twin&, Value x) { return slice(x, 5, 17); }},
        {"concat",
         [](Twin&, Value x) {
             return merge_heads(concat(split_heads(x, 4), split_heads(slice(x, 0, 7), 1)));
         }},
    };
    for (int how = 0; how <= static_cast<int>(Activation::exp); ++how) {
        const auto activation = static_cast<Activation>(how);
        ops.emplace_back("activate " + std::to_string(how),
                         [=](Twin&, Value x) { return activate(x, activation); });
        ops.emplace_back("gate " + std::to_string(how),
                         [=](Twin&, Value x) { return gate(x, scale(x, 0.5f, 2.0f), activation); });
    }
    for (const auto& [name, make] : ops) {
        Twin twin;
        twin.graph.output(OutputId::logits, make(twin, twin.floats()));
        expect_near(twin, 1e-5f, name);
    }
}

TEST_F(VulkanTwin, Norms) {
    const std::vector<std::function<Value(Twin&, Value)>> norms = {
        [](Twin& t, Value x) { return rms_norm(x, t.weight({kWidth}), 1e-5f); },
        [](Twin&, Value x) { return rms_norm(x, {}, 1e-5f); },
        [](Twin& t, Value x) {
            return layer_norm(x, t.weight({kWidth}), t.weight({kWidth}), 1e-5f);
        },
        [](Twin&, Value x) { return l2_norm(x, 1e-6f); },
        [](Twin& t, Value x) {  // a weight for each head
            return merge_heads(rms_norm(split_heads(x, 4), t.weight({4, kWidth / 4}), 1e-5f));
        },
    };
    for (const auto& make : norms) {
        Twin twin;
        twin.graph.output(OutputId::logits, make(twin, twin.floats()));
        expect_near(twin, 1e-5f);
    }
}

// Rows one by one, a few at once, and tiles; widths that fill no group and no tile.
TEST_F(VulkanTwin, ProductsOfFloats) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const int64_t columns : {20, 48, 129}) {
            for (const auto& [capacity, rows] :
                 {std::pair{1, 1}, {2, 2}, {4, 3}, {8, 7}, {16, 13}, {64, 35}, {128, 127}}) {
                Twin twin{capacity};
                const Value x = twin.floats(columns);
                const Value y = linear(x, twin.weight({137, columns}, dtype), twin.weight({137}));
                twin.graph.output(OutputId::logits, y);
                twin.counts.tokens = rows;
                expect_near(twin, dtype == DType::bf16 ? 1e-2f : 1e-5f,
                            std::to_string(rows) + " rows of " + std::to_string(columns));
            }
        }
}

TEST_F(VulkanTwin, RotaryEmbeddings) {
    for (const bool interleaved : {false, true})
        for (const double extrapolation : {0.0, 1.0}) {
            Twin twin;
            const Rope rope{.n_rot = 8,
                            .scale = 0.25,
                            .interleaved = interleaved,
                            .extrapolation = extrapolation,
                            .magnitude = 1.1,
                            .n_ctx_original = 4096};
            std::vector<int32_t> positions(kCapacity);
            for (size_t i = 0; i < positions.size(); ++i)
                positions[i] = static_cast<int32_t>(i * i * 4567);  // to beyond a million
            const Value table =
                rope_table(twin.ints(InputField::positions, positions, Extent::tokens), rope);
            twin.graph.output(OutputId::logits,
                              merge_heads(plait::rope(split_heads(twin.floats(), 4), table, rope)));
            expect_near(twin, 1e-5f);
        }
}

// S0-04, S2-30: what is stored is what the CPU stores: every bit of float types. Encoders of blocks
// divide, which a device may do less exactly: a code in fifty may be its neighbour's.
TEST_F(VulkanTwin, RowsAreStoredInEveryTypeOfACache) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q5_1,
                              DType::q5_0, DType::q4_1, DType::q4_0, DType::iq4_nl}) {
        Twin twin;
        std::vector<int32_t> rows;
        for (int32_t i = 0; i < kCapacity; ++i) rows.push_back((i * 7 + 3) % 31);
        const Value x = reshape(twin.floats(), {kCapacity, 2, kWidth / 2});
        store_rows(twin.cache(dtype, 31, 2 * 32), x,
                   twin.ints(InputField::write_rows, rows, Extent::tokens));
        const Results results = run(twin);
        const auto &cpu = results.cpu.caches[0], &vulkan = results.vulkan.caches[0];
        size_t differ = 0;
        for (size_t i = 0; i < cpu.size(); ++i) differ += cpu[i] != vulkan[i];
        if (is_block_type(dtype))
            EXPECT_LE(differ, cpu.size() / 50) << info(dtype).name;
        else
            EXPECT_EQ(differ, 0u) << info(dtype).name;
    }
}

// S3-25: a row that is both source and target keeps its turn.
TEST_F(VulkanTwin, RowsMoveInOrder) {
    for (const DType dtype : {DType::f16, DType::q4_0, DType::q5_1}) {
        Twin twin;
        twin.counts.moves = 4;
        copy_rows(twin.cache(dtype, 8, 160),
                  twin.ints(InputField::from_rows, {0, 5, 6, 1, 7}, Extent::moves),
                  twin.ints(InputField::to_rows, {5, 6, 1, 0, 2}, Extent::moves));
        const Results results = run(twin);
        EXPECT_EQ(results.vulkan.caches[0], results.cpu.caches[0]) << info(dtype).name;
    }
}

TEST_F(VulkanTwin, ExpertsAreChosenAlike) {
    for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen})
        for (const int groups : {1, 4}) {
            Twin twin;
            const RouteOp how{.n_used = 5,
                              .renormalize = gating == Gating::sigmoid,
                              .scale = 1.5f,
                              .gating = gating,
                              .n_groups = groups,
                              .n_groups_used = groups == 1 ? 1 : 2};
            const Value routes = route(twin.floats(), how, twin.weight({kWidth}));
            twin.graph.output(OutputId::logits, routes);
            const Results results = run(twin);
            for (size_t i = 0; i < results.cpu.values.size(); i += 2) {
                const auto expert = [&](const Twin::Result& r) {
                    return std::bit_cast<int32_t>(r.values[i]);
                };
                EXPECT_EQ(expert(results.vulkan), expert(results.cpu));
                EXPECT_NEAR(results.vulkan.values[i + 1], results.cpu.values[i + 1], 1e-5f);
            }
        }
}

}  // namespace
}  // namespace plait

#endif  // PLAIT_HAS_VULKAN
