// A plan's dispatches as one command buffer, recorded when it is made and submitted by every run.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/vulkan/buffer.h"
#include "backend/vulkan/commands.h"
#include "backend/vulkan/frame.h"
#include "backend/vulkan/ops/bind.h"

namespace plait::vulkan {

// A result that the host reads when a run has ended.
struct OutputRows {
    Rows rows;
    uint64_t row_bytes = 0;  // 0: the plan has no such output
    uint64_t bytes() const { return row_bytes * rows.fixed; }
};

// What an executable is made of.
struct Program {
    std::vector<Step> steps;
    std::vector<std::byte> constants;   // tables that steps refer to
    std::array<OutputRows, 2> outputs;  // by OutputId; `fixed` is the capacity
    uint64_t scratch_bytes = 0;         // of the arena
};

class VulkanExecutable final : public Executable {
public:
    VulkanExecutable(Commands& commands, Program program);

    uint64_t scratch_bytes() const override { return program_.scratch_bytes; }
    void run(const RunArguments& run) override;

private:
    Frame refresh(const RunArguments& run);
    vk::UniqueCommandBuffer record() const;
    void dispatch(vk::CommandBuffer commands, size_t step) const;
    void run_traced(Trace& trace);

    Commands& commands_;
    Program program_;
    std::vector<vk::Pipeline> pipelines_;  // by step
    DeviceBuffer memory_;                  // frame, grids and arguments of the steps, constants
    std::vector<uint64_t> args_;           // by step: where in it; then the constants
    vk::UniqueCommandBuffer recorded_;
    bool has_run_ = false;
};

}  // namespace plait::vulkan
