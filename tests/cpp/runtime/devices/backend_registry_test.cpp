// A backend can be registered from outside of cpp/backend: this file registers one that computes
// nothing.
#include "runtime/devices/backend_registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/memory.h"
#include "base/error.h"

namespace plait {
namespace {

class NoWeights final : public WeightStore {
public:
    explicit NoWeights(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
    uint64_t bytes() const override { return 0; }
    const WeightSource& source() const override { return *source_; }

private:
    std::shared_ptr<const WeightSource> source_;
};

class EmptyExecutable final : public Executable {
public:
    uint64_t scratch_bytes() const override { return 0; }
    void run(const RunArguments&) override {}
};

class StubGraph final : public LoweredGraph {
public:
    explicit StubGraph(const Graph& graph)
        : LoweredGraph(graph.nodes(), {graph.outputs().begin(), graph.outputs().end()}) {}
    std::unique_ptr<Executable> compile(const Segment&) override {
        return std::make_unique<EmptyExecutable>();
    }
};

class StubBackend final : public Backend {
public:
    std::string_view name() const override { return "stub:0"; }
    std::string packing() const override { return "stub"; }
    int n_threads() const override { return 1; }
    std::unique_ptr<Buffer> allocate(uint64_t bytes) override { return cpu::allocate_host(bytes); }
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override {
        return std::make_shared<NoWeights>(std::move(source));
    }
    bool supports(const Graph&, NodeId) const override { return true; }
    std::unique_ptr<LoweredGraph> lower(Graph graph, bool) override {
        return std::make_unique<StubGraph>(graph);
    }
};

void register_stub() {
    register_backend({.name = "stub",
                      .devices = [] { return std::vector<DeviceInfo>{{.name = "stub:0"}}; },
                      .make = [](size_t index) -> std::unique_ptr<Backend> {
                          if (index > 0) throw BackendError("stub: there is one device");
                          return std::make_unique<StubBackend>();
                      }});
}

TEST(BackendRegistry, StubIsCreatedByName) {
    register_stub();
    register_stub();  // replaces the first
    EXPECT_EQ(std::ranges::count(backend_kinds(), "stub", &BackendKind::name), 1);
    for (const char* name : {"stub", "stub:0"}) {
        const auto devices = make_devices(name, {.threads = 1});
        ASSERT_EQ(devices.size(), 2u);
        EXPECT_EQ(devices[0]->name(), "stub:0");
        EXPECT_EQ(devices[1]->name(), "cpu");
    }
    EXPECT_THROW(make_devices("stub:1", {}), BackendError);
    for (const char* name : {"stub:x", "stub:", "stu", "stub:0,"})
        EXPECT_THROW(make_devices(name, {}), InvalidArgument) << name;
}

}  // namespace
}  // namespace plait
