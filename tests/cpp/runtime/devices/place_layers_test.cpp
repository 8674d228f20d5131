// Placement of layers on devices.
#include "runtime/devices/place_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/backend.h"
#include "batch/batch.h"
#include "memory/allocations.h"
#include "memory/memory.h"
#include "runtime/step/step_runner.h"
#include "support/stop_after.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::StopAfter;
using Devices = std::vector<uint8_t>;
constexpr uint64_t kAmpleBytes = 1 << 30;

const std::vector<uint64_t> kBytes{10, 10, 10, 10, 5};  // four layers and the output

TEST(PlaceLayers, TrailingLayersGoToTheDevice) {
    const std::vector<uint64_t> room{kAmpleBytes};
    EXPECT_EQ(place(kBytes, room, {0}), (Devices{1, 1, 1, 1, 1}));
    EXPECT_EQ(place(kBytes, room, {1}), (Devices{1, 1, 1, 1, 0}));
    EXPECT_EQ(place(kBytes, room, {3}), (Devices{1, 1, 0, 0, 0}));
    EXPECT_EQ(place(kBytes, room, {5}), (Devices{0, 0, 0, 0, 0}));
    EXPECT_EQ(place(kBytes, room, {99}), (Devices{0, 0, 0, 0, 0}));
    EXPECT_EQ(place(kBytes, room, {-1}), (Devices{0, 0, 0, 0, 0}));
}

TEST(PlaceLayers, PlacesAsManyLayersAsFit) {
    for (const auto& [room, n] : std::vector<std::pair<uint64_t, size_t>>{
             {0, 0}, {4, 0}, {5, 1}, {14, 1}, {15, 2}, {44, 4}, {45, 5}, {kAmpleBytes, 5}}) {
        Devices wanted(5, 1);
        std::fill(wanted.end() - static_cast<ptrdiff_t>(n), wanted.end(), uint8_t{0});
        EXPECT_EQ(place(kBytes, std::vector{room}, {}), wanted) << room;
    }
}

TEST(PlaceLayers, SplitSetsTheShareOfEachDevice) {
    const std::vector<uint64_t> room{kAmpleBytes, kAmpleBytes};
    EXPECT_EQ(place(kBytes, room, {-1, {1, 1}}), (Devices{0, 0, 0, 1, 1}));
    EXPECT_EQ(place(kBytes, room, {-1, {1, 4}}), (Devices{0, 1, 1, 1, 1}));
    EXPECT_EQ(place(kBytes, room, {-1, {0, 1}}), (Devices{1, 1, 1, 1, 1}));
    EXPECT_EQ(place(kBytes, room, {-1, {3, 0}}), (Devices{0, 0, 0, 0, 0}));
    EXPECT_EQ(place(kBytes, room, {2, {1, 1}}), (Devices{2, 2, 2, 0, 1}));
}

TEST(PlaceLayers, DefaultSplitFollowsFreeMemory) {
    EXPECT_EQ(place(kBytes, std::vector<uint64_t>{100, 400}, {}), (Devices{0, 1, 1, 1, 1}));
    EXPECT_EQ(place(kBytes, std::vector<uint64_t>{20, 25}, {}), (Devices{2, 0, 0, 1, 1}));
    EXPECT_EQ(place(kBytes, std::vector<uint64_t>{0, 0}, {}), (Devices{2, 2, 2, 2, 2}));
}

// A device with `bytes` of memory that lacks kernels for some operations.
class Partial final : public Backend {
public:
    Partial(uint64_t bytes, std::vector<std::string> lacks)
        : bytes_(bytes), lacks_(std::move(lacks)) {}

    std::string_view name() const override { return "partial"; }
    std::string packing() const override { return cpu_.packing(); }
    int n_threads() const override { return cpu_.n_threads(); }
    std::optional<uint64_t> free_bytes() const override { return bytes_; }
    std::unique_ptr<Buffer> allocate(uint64_t bytes) override { return cpu_.allocate(bytes); }
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override {
        return cpu_.make_weight_store(std::move(source));
    }
    bool supports(const Graph& graph, NodeId node) const override {
        return std::ranges::find(lacks_, op_name(graph.node(node).op)) == lacks_.end() &&
               cpu_.supports(graph, node);
    }
    std::unique_ptr<LoweredGraph> lower(Graph graph, bool fuse) override {
        return cpu_.lower(std::move(graph), fuse);
    }

private:
    cpu::CpuBackend cpu_{cpu::CpuOptions{.threads = 1}};
    uint64_t bytes_;
    std::vector<std::string> lacks_;
};

struct Example {
    std::shared_ptr<const LoadedModel> model = test::TinyModel{.n_layers = 4}.open();
    EngineLimits limits{.n_tokens = 8, .n_rows = 64, .build = {.n_ctx = 64}};
    std::unique_ptr<Memory> memory = [&] {
        MemoryOptions options;
        options.n_ctx = 64;
        return make_memory(model->model().memory_specs(), options);
    }();
    InputLayout inputs = Engine::input_layout(memory->layout(), limits, model->info().width);
    std::vector<Graph> graphs =
        graphs_of(model->model(),
                  {.output = OutputKind::both, .n_tokens = 8, .n_sequences = 1, .n_outputs = 8},
                  memory->layout(), limits.build);

    static std::vector<std::unique_ptr<Backend>> devices(uint64_t bytes,
                                                         std::vector<std::string> lacks = {}) {
        std::vector<std::unique_ptr<Backend>> both;
        both.push_back(std::make_unique<Partial>(bytes, std::move(lacks)));
        both.push_back(std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 2}));
        return both;
    }
    LayerDevices place(std::span<const std::unique_ptr<Backend>> devices,
                       const LayerOptions& options = {}) const {
        return place_layers(model->info(), graphs, memory->layout(), devices, inputs, options);
    }
};

// If a model is larger than the device, its first layers stay on the CPU.
TEST(PlaceLayers, CountsWeightsCachesAndStepMemory) {
    const Example e;
    const uint64_t layer = (64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3 + 2 * 64) * 4 +  // weights
                           e.memory->layout().bytes() / 4;
    const uint64_t output = (80 * 64 + 64) * 4;  // tied token embeddings
    const auto n_there = [&](uint64_t bytes) {
        const auto placed = e.place(Example::devices(bytes));
        return std::ranges::count(placed.layers, 0) + (placed.output == 0);
    };
    const auto needed = [&](uint64_t layers) {  // a sixteenth is left free
        const uint64_t max = 1u << 22;          // more than a step of this model
        uint64_t low = 0, high = max;
        while (low < high) {
            const uint64_t middle = (low + high) / 2;
            (n_there(middle) >= static_cast<ptrdiff_t>(layers) ? high : low) =
                n_there(middle) >= static_cast<ptrdiff_t>(layers) ? middle : middle + 1;
        }
        return low;
    };
    const uint64_t first = needed(1), second = needed(2), fourth = needed(4), all = needed(5);
    EXPECT_GT(first, output);
    EXPECT_NEAR(static_cast<double>(second - first), static_cast<double>(layer) * 16 / 15, 32);
    EXPECT_NEAR(static_cast<double>(fourth - second), 2.0 * static_cast<double>(layer) * 16 / 15,
                32);
    // The first layer includes the token embeddings.
    EXPECT_NEAR(static_cast<double>(all - fourth),
                static_cast<double>(layer + 80 * 64 * 4) * 16 / 15, 32);
}

// S0-21
TEST(PlaceLayers, CacheGoesToTheCpuIfTheDeviceLacksItsKernels) {
    const Example e;
    for (const char* op : {"attend", "store_rows", "copy_rows", "rotate_rows"}) {
        const auto placed = e.place(Example::devices(kAmpleBytes, {op}));
        EXPECT_EQ(placed.layers, (Devices{0, 0, 0, 0})) << op;
        EXPECT_EQ(placed.caches, (Devices{1, 1, 1, 1})) << op;
    }
    EXPECT_EQ(e.place(Example::devices(kAmpleBytes, {"gate"})).caches, (Devices{0, 0, 0, 0}));
}

TEST(PlaceLayers, ErrorNamesTheUnsupportedOp) {
    const Example e;
    std::vector<std::unique_ptr<Backend>> devices;
    for (int i = 0; i < 2; ++i)
        devices.push_back(std::make_unique<Partial>(kAmpleBytes, std::vector<std::string>{"gate"}));
    try {
        e.place(devices);
        FAIL();
    } catch (const UnsupportedError& error) {
        EXPECT_STREQ(error.what(), "partial: no kernel for gate of F32 [8, 96]");
    }
}

struct Driver {
    Engine engine;
    Recorder recorder;
    std::unique_ptr<StepRunner> runner;

    Driver(const Example& e, DeviceSet devices)
        : engine(e.model, std::move(devices), e.memory->layout(), e.limits) {
        MemoryOptions memory_options;
        memory_options.n_ctx = 64;
        auto memory = make_memory(e.model->model().memory_specs(), memory_options);
        StepOptions options;
        options.limits = {.n_vocab = 80, .width = 64, .n_batch = 32, .n_seq_max = 1};
        options.split.max_tokens = 8;
        options.form.outputs.hidden = true;
        runner = std::make_unique<StepRunner>(
            e.model->info(), std::make_shared<StoredMemory>(std::move(memory), engine.device_set()),
            engine, recorder, options);
    }
    static Batch batch(int n) {
        Batch batch;
        const SequenceId sequence = 0;
        for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&sequence, 1), true);
        return batch;
    }
};

std::vector<float> logits(const Example& e, DeviceSet devices) {
    Driver driver(e, std::move(devices));
    std::vector<float> all;
    for (const int n : {11, 1, 1, 3}) {
        const Batch batch = Driver::batch(n);
        const Outputs outputs = driver.runner->run(batch.view(), nullptr);
        std::ranges::copy(outputs.logits(), std::back_inserter(all));
        std::ranges::copy(outputs.embeddings(), std::back_inserter(all));
    }
    return all;
}

// With devices that compute the same bits, the placement of layers does not change the outputs.
TEST(PlaceLayers, PlacementDoesNotChangeTheBits) {
    const Example e;
    const std::vector<float> alone =
        logits(e, std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 2}));
    for (int64_t n = 0; n <= 5; ++n) {
        auto devices = Example::devices(kAmpleBytes);
        const auto placed = e.place(devices, {n, {}});
        EXPECT_EQ(logits(e, join(std::move(devices), placed)), alone) << n << " layers";
    }
    for (const char* op :
         {"attend", "store_rows", "gate", "rms_norm", "rope_table", "linear", "add"}) {
        auto devices = Example::devices(kAmpleBytes, {op});
        const auto placed = e.place(devices, {4, {}});
        EXPECT_EQ(logits(e, join(std::move(devices), placed)), alone) << "without " << op;
    }
}

// G17: transfers between devices do not allocate either.
TEST(PlaceLayers, StepOnTwoDevicesAllocatesNothing) {
    const Example e;
    auto devices = Example::devices(kAmpleBytes, {"gate"});
    const auto placed = e.place(devices, {3, {}});
    Driver driver(e, join(std::move(devices), placed));
    for (const int n : {7, 1, 1}) driver.runner->run(Driver::batch(n).view(), nullptr);
    const Batch step = Driver::batch(1);
    for (int i = 0; i < 20; ++i) {
        const uint64_t before = n_allocations();
        driver.runner->run(step.view(), nullptr);
        EXPECT_EQ(n_allocations() - before, 0u) << "step " << i;
    }
}

// After an interrupted call, the next call returns what it would have returned without it.
TEST(PlaceLayers, InterruptionOnEitherDeviceLeavesTheMemoryUnchanged) {
    const Example e;
    const std::vector<float> wanted = [&] {
        Driver driver(e, std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{.threads = 2}));
        driver.runner->run(Driver::batch(5).view(), nullptr);
        const Outputs outputs = driver.runner->run(Driver::batch(3).view(), nullptr);
        return std::vector<float>(outputs.logits().begin(), outputs.logits().end());
    }();
    auto devices = Example::devices(kAmpleBytes, {"rms_norm"});
    const auto placed = e.place(devices, {3, {}});
    Driver driver(e, join(std::move(devices), placed));
    driver.runner->run(Driver::batch(5).view(), nullptr);
    const Batch batch = Driver::batch(3);
    int n_stopped = 0;
    for (int polls = 0;; ++polls) {
        StopAfter stop(polls);
        try {
            const Outputs outputs = driver.runner->run(batch.view(), &stop);
            EXPECT_EQ(std::vector<float>(outputs.logits().begin(), outputs.logits().end()), wanted);
            break;
        } catch (const Interrupted&) {
            ++n_stopped;
            EXPECT_EQ(driver.runner->memory().n_used(), 5);
        }
    }
    EXPECT_GT(n_stopped, 5);
}

}  // namespace
}  // namespace plait
