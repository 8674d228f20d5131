#include "backend/vulkan/backend.h"

#include <functional>
#include <set>

#include "backend/bind_nodes.h"
#include "backend/vulkan/buffer.h"
#include "backend/vulkan/cooperative_matrix.h"
#include "backend/vulkan/devices.h"
#include "backend/vulkan/executable.h"
#include "backend/vulkan/ops/bind.h"
#include "backend/vulkan/settings.h"
#include "backend/vulkan/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/rewrite.h"

namespace plait::vulkan {
namespace {

// Returns the outputs that the segment computes.
std::array<OutputRows, 2> outputs_of(const Graph& graph, const Segment& segment) {
    std::array<bool, 2> made{};
    for (const NodeId id : segment.nodes)
        if (segment.places[id].space == Space::output &&
            info_of(graph.node(id).op).kind == OpKind::kernel)
            made[segment.places[id].index] = true;
    std::array<OutputRows, 2> outputs;
    for (const auto& [id, node] : graph.outputs()) {
        if (id >= OutputId::first_captured || !made[static_cast<size_t>(id)]) continue;
        const Node& result = graph.node(node);
        const auto rows = static_cast<uint32_t>(result.type.shape[0]);
        outputs[static_cast<size_t>(id)] = {{static_cast<uint32_t>(result.extent), rows},
                                            result.type.bytes() / rows};
    }
    return outputs;
}

// Cache memory of one context. A failed write, for example while a state is loaded, makes the
// context unusable.
class ContextBuffer final : public DeviceBuffer {
public:
    ContextBuffer(const Commands& commands, uint64_t bytes)
        : DeviceBuffer(commands.device(), bytes, MemoryKind::device),
          integrity_(commands.integrity()) {}

    void write(uint64_t offset, std::span<const std::byte> source) override {
        integrity_->change([&] { DeviceBuffer::write(offset, source); });
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        integrity_->check();
        DeviceBuffer::read(offset, target);
    }

private:
    std::shared_ptr<Integrity> integrity_;
};

// Shaders run the ops of a model's graph as they are; the only fusion is a matrix product that adds
// a residual.
class VulkanGraph final : public LoweredGraph {
public:
    VulkanGraph(Graph graph, Commands& commands, const Limits& limits)
        : LoweredGraph(graph.nodes(), {graph.outputs().begin(), graph.outputs().end()}),
          graph_(std::move(graph)),
          commands_(commands),
          limits_(limits) {}

    std::unique_ptr<Executable> compile(const Segment& segment) override {
        Binder binder(graph_.nodes(), segment, limits_);
        bind_nodes(graph_.nodes(), segment.nodes, binder);
        Program program{binder.take(), binder.take_constants(), outputs_of(graph_, segment),
                        binder.scratch_bytes()};
        return std::make_unique<VulkanExecutable>(commands_, std::move(program));
    }

private:
    Graph graph_;
    Commands& commands_;
    const Limits& limits_;
};

class VulkanBackend final : public Backend {
public:
    VulkanBackend(std::shared_ptr<Device> device, size_t index)
        : device_(std::move(device)),
          index_(index),
          commands_(device_),
          limits_(device_->limits()) {
        if (disabled_.contains(kCooperativeMatrix)) limits_.matrix.reset();
    }

    std::string_view name() const override { return device_->name(); }
    std::string packing() const override {
        return text(device_->name(), " opened ", device_->generation());
    }
    int n_threads() const override { return 1; }
    bool invariant() const override {
        return false;
    }  // few rows use another order of sums than many rows
    CommandCounts commands() const override { return commands_.counts(); }
    std::optional<uint64_t> free_bytes() const override { return free_memory(index_); }

    std::unique_ptr<Buffer> allocate(uint64_t bytes) override {
        return std::make_unique<ContextBuffer>(commands_, bytes);
    }
    std::unique_ptr<Buffer> allocate_inputs(uint64_t bytes) override {
        return std::make_unique<DeviceBuffer>(device_, bytes, MemoryKind::upload);
    }
    std::unique_ptr<Buffer> allocate_results(uint64_t bytes) override {
        return std::make_unique<DeviceBuffer>(device_, bytes, MemoryKind::download);
    }
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override {
        return std::make_shared<VulkanWeights>(std::move(source), device_);
    }
    bool supports(const Graph& graph, NodeId id) const override {
        const Node& node = graph.node(id);
        const auto* attend = std::get_if<ops::Attend>(&node.op);
        return !disabled_.contains(op_name(node.op)) && (attend == nullptr || fits(*attend));
    }
    std::unique_ptr<LoweredGraph> lower(Graph graph, bool fuse) override {
        if (fuse) fuse_linear_add(graph);
        return std::make_unique<VulkanGraph>(std::move(graph), commands_, limits_);
    }

private:
    std::shared_ptr<Device> device_;
    size_t index_;
    Commands commands_;
    Limits limits_;
    std::set<std::string, std::less<>> disabled_ = disabled_features();
};

}  // namespace

std::unique_ptr<Backend> make_backend(size_t index) {
    return std::make_unique<VulkanBackend>(Device::open(index), index);
}

}  // namespace plait::vulkan
