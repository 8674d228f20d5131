// Compiled plans: the dispatches of a plan are recorded into one command buffer when the plan is
// compiled, and every run submits it again.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/integrity.h"
#include "backend/vulkan/buffer.h"
#include "backend/vulkan/device.h"
#include "backend/vulkan/frame.h"
#include "backend/vulkan/ops/bind.h"

namespace plait::vulkan {

// Shared by the executables of one context: the command pool, the fence that signals the end of a
// run, and the host-visible buffers for results.
class Commands {
public:
    explicit Commands(std::shared_ptr<Device> device);

    const std::shared_ptr<Device>& device() const { return device_; }
    const std::shared_ptr<Integrity>& integrity() const { return integrity_; }
    // Returns an empty command buffer.
    vk::UniqueCommandBuffer allocate();
    // Submits a recorded command buffer and waits until it has completed. A recording is counted
    // when it is first run.
    void run(vk::CommandBuffer commands, bool first_time);
    CommandCounts counts() const { return counts_; }

    // Makes the buffer for an output at least this large. Must not be called during a run.
    void reserve_output(size_t index, uint64_t bytes);
    DeviceBuffer* output(size_t index) const { return outputs_[index].get(); }

private:
    std::shared_ptr<Device> device_;
    std::shared_ptr<Integrity> integrity_;
    vk::UniqueCommandPool pool_;
    vk::UniqueFence fence_;
    std::array<std::unique_ptr<DeviceBuffer>, 2> outputs_;  // [OutputId]
    CommandCounts counts_;
};

// A result that the host reads after a run.
struct OutputRows {
    Rows rows;
    uint64_t row_bytes = 0;  // 0 if the plan does not have this output
    uint64_t bytes() const { return row_bytes * rows.fixed; }
};

// The result of binding all nodes of a plan.
struct Program {
    std::vector<Dispatch> dispatches;
    std::vector<std::byte> constants;   // tables that dispatches refer to
    std::array<OutputRows, 2> outputs;  // [OutputId]; `fixed` is the capacity
    uint64_t scratch_bytes = 0;         // needed in the arena
};

class VulkanExecutable final : public Executable {
public:
    VulkanExecutable(Commands& commands, Program program);

    uint64_t scratch_bytes() const override { return program_.scratch_bytes; }
    void run(const RunArguments& run) override;

private:
    Frame write_frame(const RunArguments& run);
    vk::UniqueCommandBuffer record() const;
    void record_dispatch(vk::CommandBuffer commands, size_t i) const;
    void run_traced(Trace& trace);

    Commands& commands_;
    Program program_;
    std::vector<vk::Pipeline> pipelines_;  // [dispatch]
    DeviceBuffer memory_;         // frame, grid sizes, arguments of the dispatches, constants
    std::vector<uint64_t> args_;  // [dispatch], offsets in memory_; last, that of the constants
    vk::UniqueCommandBuffer recorded_;
    bool has_run_ = false;
};

}  // namespace plait::vulkan
