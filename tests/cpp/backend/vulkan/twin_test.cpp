// Operations on the Vulkan backend against the same on the CPU: whole graphs of one operation, run
// by both from the same bytes. Whole models are compared in tests/python/vulkan/test_vulkan.py.
#ifdef PLAIT_HAS_VULKAN

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend.h"
#include "backend/vulkan/backend.h"
#include "backend/vulkan/devices.h"
#include "graph/ops.h"
#include "plan/plan.h"
#include "support/odd_values.h"
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
        return floats(width, random_floats(static_cast<size_t>(capacity_ * width), 7));
    }
    Value floats(int64_t width, const std::vector<float>& values) {
        add({InputField::embeddings}, values);
        return graph.input({InputField::embeddings}, {DType::f32, {capacity_, width}},
                           Extent::tokens);
    }
    Value ints(InputField field, const std::vector<int32_t>& values, Extent extent,
               int64_t columns = 1) {
        add({field}, values);
        const auto n = static_cast<int64_t>(values.size());
        const Shape shape = columns == 1 ? Shape{n} : Shape{n / columns, columns};
        return graph.input({field}, {DType::i32, shape}, extent);
    }
    Value weight(const Shape& shape, DType dtype = DType::f32) {
        const TensorType type{dtype, shape};
        return graph.weight({weights_->add(type), type});
    }
    Value weight(const Shape& shape, const std::vector<uint16_t>& bf16) {
        const Value value = weight(shape, DType::bf16);
        const auto bytes = std::as_bytes(std::span(bf16));
        weights_->bytes(static_cast<WeightId>(weights_->count() - 1))
            .assign(bytes.begin(), bytes.end());
        return value;
    }
    Value cache(DType dtype, int64_t rows, int64_t width) {
        caches_.push_back({dtype, {rows, width}});
        return graph.storage(static_cast<uint32_t>(caches_.size() - 1), caches_.back());
    }

    struct Result {
        std::vector<float> values;                   // rows of the output
        std::vector<std::vector<std::byte>> caches;  // as the run left them
    };
    Result run(DeviceSet& devices) const {
        Backend& backend = devices[0];
        std::vector<std::unique_ptr<Buffer>> storage;
        std::vector<Buffer*> pointers;
        for (const TensorType& type : caches_) {
            storage.push_back(backend.allocate(type.bytes()));
            storage.back()->write(0, test::random_bytes(type, 3));
            pointers.push_back(storage.back().get());
        }
        const WeightStores stores({backend.make_weight_store(weights_)});
        const std::vector<size_t> storage_devices(pointers.size());
        Plan plan(graph, {devices, layout_, stores, pointers, storage_devices});
        DeviceBuffers arenas;
        devices.grow(arenas, plan.arena_bytes());
        const DeviceBuffers inputs = devices.allocate_inputs(layout_.bytes());
        for (const auto& [id, bytes] : inputs_) inputs.on(0).write(layout_.offset(id), bytes);

        Result result;
        for (const auto& [id, node] : graph.outputs()) {
            const Shape& shape = graph.node(node).type.shape;
            result.values.resize(static_cast<size_t>(shape.elements() / shape[0] * counts.tokens));
        }
        PlanArguments arguments{.arenas = arenas, .inputs = inputs, .counts = counts};
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
        vulkan_.emplace(vulkan::make_backend(0));
    }
    static bool has(std::string_view feature) {
        return std::ranges::any_of(vulkan::devices()[0].features, [&](const std::string& name) {
            return name.starts_with(feature);
        });
    }
    // A backend whose products are tiles of floats, whatever the device has.
    static DeviceSet make_without_matrices() {
        setenv("PLAIT_VULKAN_WITHOUT", "cooperative_matrix", /*overwrite=*/1);
        DeviceSet devices(vulkan::make_backend(0));
        unsetenv("PLAIT_VULKAN_WITHOUT");
        return devices;
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

    DeviceSet cpu_{
        std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 1, .isa = "scalar"})};
    std::optional<DeviceSet> vulkan_;
};

TEST_F(VulkanTwin, ElementByElement) {
    using Make = std::function<Value(Twin&, Value)>;
    std::vector<std::pair<std::string, Make>> ops = {
        {"add", [](Twin& t, Value x) { return x + t.weight({kWidth}); }},
        {"subtract a row's number", [](Twin&, Value x) { return x - row_sum(x); }},
        {"multiply", [](Twin&, Value x) { return x * scale(x, 0.3f, 1.0f); }},
        {"multiply by a number for each head",
         [](Twin& t, Value x) {
             return merge_heads(split_heads(x, 6) * t.weight({6, 1}));
         }},
        {"softcap", [](Twin&, Value x) { return softcap(x, 3.0f); }},
        {"clamp", [](Twin&, Value x) { return clamp(x, 1.5f); }},
        {"mix",
         [](Twin&, Value x) {
             const Value weights = reshape(slice(x, 3, 10), {x.shape()[0], 5, 2});
             return merge_heads(mix(split_heads(x, 2), weights));
         }},
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
    for (const auto& [name, make] : ops)
        for (const auto& [capacity, rows] : {std::pair{kCapacity, 13}, {int64_t{1}, 1}}) {
            Twin twin(capacity);
            twin.counts.tokens = twin.counts.outputs = rows;
            twin.graph.output(OutputId::logits, make(twin, twin.floats()));
            expect_near(twin, 1e-5f, name + " of " + std::to_string(rows) + " rows");
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
    vulkan_.emplace(make_without_matrices());
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

// Products by cooperative matrices beside those by tiles of floats, on the same device. Factors are
// rounded to halves, to within 2^-11 where the device rounds to nearest.
class VulkanMatrices : public VulkanTwin {
protected:
    void SetUp() override {
        VulkanTwin::SetUp();
        if (IsSkipped()) return;
        if (!has("cooperative_matrix "))
            GTEST_SKIP() << "no cooperative matrices here that this build has shaders for";
        tiles_.emplace(make_without_matrices());
    }
    struct Pair {
        std::vector<float> tiles, matrices;
    };
    Pair run(const Twin& twin) { return {twin.run(*tiles_).values, twin.run(*vulkan_).values}; }

    static void expect_alike(const std::vector<float>& got, const std::vector<float>& wanted,
                             const std::string& what) {
        float most = 0;
        for (const float value : wanted) most = std::max(most, std::abs(value));
        for (size_t i = 0; i < wanted.size(); ++i)
            ASSERT_NEAR(got[i], wanted[i], 1e-3f * most) << what << " element " << i;
    }

    std::optional<DeviceSet> tiles_;
};

TEST_F(VulkanMatrices, ProductsOfEveryType) {
    for (const DTypeInfo& type : all_dtypes()) {
        if (type.dtype == DType::i32) continue;
        Twin twin{128};
        const Value x = twin.floats(768);
        const Value y = linear(x, twin.weight({137, 768}, type.dtype), twin.weight({137}));
        twin.graph.output(OutputId::logits, y);
        twin.counts.tokens = 127;
        const auto [tiles, matrices] = run(twin);
        if (type.dtype == DType::f32) {
            EXPECT_EQ(matrices, tiles);
            continue;
        }
        expect_alike(matrices, tiles, std::string(type.name));
        EXPECT_NE(matrices, tiles) << type.name << ": these are tiles";
    }
}

// Rows and columns that fill tiles and matrices, and that do not.
TEST_F(VulkanMatrices, TilesThatAreNotFull) {
    for (const auto& [capacity, rows] :
         {std::pair{32, 17}, {32, 20}, {64, 41}, {128, 65}, {512, 300}})
        for (const int64_t columns : {20, 48, 129, 512}) {
            Twin twin{capacity};
            const Value x = twin.floats(columns);
            const Value y = linear(x, twin.weight({70, columns}, DType::f16));
            twin.graph.output(OutputId::logits, y);
            twin.counts.tokens = rows;
            const auto [tiles, matrices] = run(twin);
            expect_alike(matrices, tiles,
                         std::to_string(rows) + " rows of " + std::to_string(columns));
        }
}

// What no half can hold: each row keeps its precision, whatever its size and its neighbours', and
// what is no number stays in its row.
TEST_F(VulkanMatrices, ValuesBeyondHalves) {
    constexpr int64_t kColumns = 64, kOutputs = 80;
    const std::vector<float> of_x = {1, 1e20f, 1e-20f, 3e4f, 1e-5f, 0, 1e-25f, 7e4f};
    const std::vector<float> of_w = {1, 1e10f, 1e-10f, 3e5f, 1e-4f};
    Twin twin{32};
    twin.counts.tokens = 24;
    std::vector<float> x = random_floats(32 * kColumns, 5);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= of_x[i / kColumns % of_x.size()];
    x[13 * kColumns + 5] = kNan;
    x[14 * kColumns + 5] = kInf;
    std::vector<uint16_t> w;
    for (const float value : random_floats(kOutputs * kColumns, 6))
        w.push_back(f32_to_bf16(value * of_w[w.size() / kColumns % of_w.size()]));
    twin.graph.output(OutputId::logits,
                      linear(twin.floats(kColumns, x), twin.weight({kOutputs, kColumns}, w)));
    const auto [tiles, matrices] = run(twin);
    for (size_t i = 0; i < tiles.size(); ++i) {
        const size_t row = i / kOutputs, output = i % kOutputs;
        if (row == 13 || row == 14) {
            EXPECT_FALSE(std::isfinite(matrices[i])) << row;
            continue;
        }
        const float size = 4 * std::sqrt(static_cast<float>(kColumns)) * of_x[row % of_x.size()] *
                           of_w[output % of_w.size()];
        ASSERT_NEAR(matrices[i], tiles[i], 2e-3f * size) << row << ", " << output;
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

TEST_F(VulkanTwin, PositionsOfSeveralAxes) {
    for (const bool in_turn : {false, true}) {
        Twin twin;
        const Rope rope{.n_rot = 24, .sections = {5, 3, 3, 0}, .in_turn = in_turn};
        std::vector<int32_t> positions(size_t{kCapacity} * 4);
        for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 37);
        const Value table =
            rope_table(twin.ints(InputField::positions, positions, Extent::tokens, 4), rope);
        twin.graph.output(OutputId::logits,
                          merge_heads(plait::rope(split_heads(twin.floats(), 2), table, rope)));
        expect_near(twin, 1e-5f, in_turn ? "in turn" : "one after the other");
    }
}

TEST_F(VulkanTwin, HadamardTransforms) {
    for (const int heads : {1, 3}) {
        Twin twin;
        twin.graph.output(OutputId::logits,
                          merge_heads(hadamard(split_heads(twin.floats(), heads), 16)));
        expect_near(twin, 1e-5f);
    }
}

TEST_F(VulkanTwin, QueriesGrowWithTheirPosition) {
    Twin twin;
    std::vector<int32_t> positions(kCapacity);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * i * 900);
    const Value t = temperature(twin.ints(InputField::positions, positions, Extent::tokens),
                                {.scale = 0.2f, .length = 8192, .offset = 1});
    twin.graph.output(OutputId::logits, twin.floats() * t);
    expect_near(twin, 1e-5f);
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
            const Value scales = groups == 4 ? twin.weight({kWidth}) : Value{};
            const RouteParams how{.n_used = 5,
                                  .renormalize = gating == Gating::sigmoid,
                                  .scale = 1.5f,
                                  .gating = gating,
                                  .n_groups = groups,
                                  .n_groups_used = groups == 1 ? 1 : 2,
                                  .group_best = gating == Gating::softmax ? 1 : 2};
            const Value routes = route(twin.floats(), how, twin.weight({kWidth}), scales);
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

// What VK_EXT_memory_budget says is left, which is less when something was taken.
TEST_F(VulkanTwin, FreeMemoryIsWhatIsLeft) {
    if (!has("VK_EXT_memory_budget")) GTEST_SKIP() << "the driver does not say what is left";
    constexpr uint64_t kBytes = uint64_t{1} << 30;
    bool fell = false;
    for (int tries = 0; tries < 5 && !fell; ++tries) {  // others may give some back meanwhile
        const uint64_t before = (*vulkan_)[0].free_bytes().value();
        EXPECT_LE(before, vulkan::devices()[0].memory);
        if (before < 2 * kBytes) GTEST_SKIP() << "there is too little memory";
        const auto buffer = (*vulkan_)[0].allocate(kBytes);
        fell = (*vulkan_)[0].free_bytes().value() <= before - kBytes / 2;
    }
    EXPECT_TRUE(fell);
}

}  // namespace
}  // namespace plait

#endif  // PLAIT_HAS_VULKAN
