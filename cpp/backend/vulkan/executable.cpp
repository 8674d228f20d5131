#include "backend/vulkan/executable.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

using Access = vk::AccessFlagBits;
using Grid = vk::DispatchIndirectCommand;
using Stage = vk::PipelineStageFlagBits;

constexpr vk::AccessFlags kShader = Access::eShaderRead | Access::eShaderWrite;
constexpr uint64_t kArgsAlignment = 16;  // assumed by buffer_reference

// Records a barrier: later stages wait for earlier ones and see their writes.
void barrier(vk::CommandBuffer commands, vk::PipelineStageFlags from, vk::PipelineStageFlags to,
             vk::AccessFlags reads) {
    const vk::MemoryBarrier memory{.srcAccessMask = Access::eMemoryWrite, .dstAccessMask = reads};
    commands.pipelineBarrier(from, to, {}, memory, {}, {});
}

uint64_t grid_offset(size_t i) { return sizeof(Frame) + i * sizeof(Grid); }

// Returns the offset of the arguments of each dispatch, followed by the offset of the constants.
std::vector<uint64_t> arg_offsets(const std::vector<Dispatch>& dispatches) {
    std::vector<uint64_t> offsets;
    uint64_t at = grid_offset(dispatches.size());
    for (const Dispatch& dispatch : dispatches) {
        offsets.push_back(align_up(at, kArgsAlignment));
        at = offsets.back() + dispatch.args.size();
    }
    offsets.push_back(align_up(at, kArgsAlignment));
    return offsets;
}

}  // namespace

Commands::Commands(std::shared_ptr<Device> device)
    : device_(std::move(device)), integrity_(std::make_shared<Integrity>(device_->name())) {
    device_->attempt("cannot create a command pool", [&] {
        pool_ = device_->handle().createCommandPoolUnique(
            {.queueFamilyIndex = device_->queue_family()});
        fence_ = device_->handle().createFenceUnique({});
    });
}

vk::UniqueCommandBuffer Commands::allocate() {
    return device_->attempt("cannot allocate a command buffer", [&] {
        return std::move(device_->handle().allocateCommandBuffersUnique(
            {.commandPool = *pool_, .commandBufferCount = 1})[0]);
    });
}

void Commands::run(vk::CommandBuffer commands, bool first_time) {
    counts_.recorded += first_time;
    ++counts_.submitted;
    device_->run(commands, *fence_);
}

void Commands::reserve_output(size_t index, uint64_t bytes) {
    if (outputs_[index] && outputs_[index]->bytes() >= bytes) return;
    outputs_[index] = std::make_unique<DeviceBuffer>(device_, bytes, MemoryKind::download);
}

VulkanExecutable::VulkanExecutable(Commands& commands, Program program)
    : commands_(commands),
      program_(std::move(program)),
      memory_(commands.device(),
              arg_offsets(program_.dispatches).back() + program_.constants.size(),
              MemoryKind::upload),
      args_(arg_offsets(program_.dispatches)) {
    for (size_t i = 0; i < program_.dispatches.size(); ++i) {
        const Dispatch& dispatch = program_.dispatches[i];
        pipelines_.push_back(
            commands.device()->attempt(text("cannot compile shader ", dispatch.shader), [&] {
                return commands.device()->pipelines().get(dispatch.shader, dispatch.constants);
            }));
        memory_.write(args_[i], dispatch.args);
    }
    memory_.write(args_.back(), program_.constants);
    for (size_t i = 0; i < program_.outputs.size(); ++i)
        commands.reserve_output(i, program_.outputs[i].bytes());
    commands.device()->pipelines().save();
    recorded_ = record();
}

void VulkanExecutable::run(const RunArguments& run) {
    const auto stopped = [&] { return run.stop != nullptr && run.stop->requested(); };
    if (stopped()) throw Interrupted();
    commands_.integrity()->check();
    const Frame frame = write_frame(run);
    const auto submit = [&] {
        if (run.trace != nullptr)
            run_traced(*run.trace);
        else
            commands_.run(*recorded_, !std::exchange(has_run_, true));
    };
    // The bookkeeping already reflects the moves, so memory is inconsistent if they fail.
    if (run.counts.moves > 0)
        commands_.integrity()->change(submit);
    else
        submit();
    if (stopped()) throw Interrupted();
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
        const OutputRows& output = program_.outputs[i];
        if (output.row_bytes == 0 || run.outputs[i] == nullptr) continue;
        commands_.output(i)->read(0, {run.outputs[i], output.rows.in(frame)*output.row_bytes});
    }
}

Frame VulkanExecutable::write_frame(const RunArguments& run) {
    Frame frame;
    frame.base[kArena] = run.arena->address();
    frame.base[kInputs] = run.inputs->address();
    frame.base[kOutput0] = commands_.output(0)->address();
    frame.base[kOutput1] = commands_.output(1)->address();
    frame.base[kConstants] = memory_.address() + args_.back();
    frame.rows[kTokens] = static_cast<uint32_t>(run.counts.tokens);
    frame.rows[kOutputs] = static_cast<uint32_t>(run.counts.outputs);
    frame.rows[kMoves] = static_cast<uint32_t>(run.counts.moves);
    frame.rows[kSequences] = static_cast<uint32_t>(run.counts.sequences);
    std::memcpy(memory_.host(), &frame, sizeof frame);
    for (size_t i = 0; i < program_.dispatches.size(); ++i) {
        const std::array<Axis, 3>& grid = program_.dispatches[i].grid;
        const Grid groups{grid[0].groups(frame), grid[1].groups(frame), grid[2].groups(frame)};
        std::memcpy(memory_.host() + grid_offset(i), &groups, sizeof groups);
    }
    return frame;
}

void VulkanExecutable::record_dispatch(vk::CommandBuffer commands, size_t i) const {
    const Push push{memory_.address() + args_[i], memory_.address()};
    commands.bindPipeline(vk::PipelineBindPoint::eCompute, pipelines_[i]);
    commands.pushConstants(commands_.device()->pipelines().layout(),
                           vk::ShaderStageFlagBits::eCompute, 0, sizeof push, &push);
    commands.dispatchIndirect(memory_.handle(), grid_offset(i));
}

// Runs the dispatches one by one, each in its own submission, so that the host can measure their
// times.
void VulkanExecutable::run_traced(Trace& trace) {
    for (size_t i = 0; i < program_.dispatches.size(); ++i) {
        const int64_t begin_ns = Trace::now();
        commands_.device()->transfer().run_once([&](vk::CommandBuffer commands) {
            barrier(commands, Stage::eAllCommands, Stage::eComputeShader, kShader);
            record_dispatch(commands, i);
            barrier(commands, Stage::eComputeShader, Stage::eHost, Access::eHostRead);
        });
        trace.add(program_.dispatches[i].node, 0, begin_ns);
    }
}

vk::UniqueCommandBuffer VulkanExecutable::record() const {
    vk::UniqueCommandBuffer commands = commands_.allocate();
    commands_.device()->attempt("cannot record a plan", [&] {
        commands->begin(vk::CommandBufferBeginInfo{});
        barrier(*commands, Stage::eAllCommands, Stage::eComputeShader,
                kShader);  // wait for earlier runs
        for (size_t i = 0; i < program_.dispatches.size(); ++i) {
            const Dispatch& dispatch = program_.dispatches[i];
            if (i > 0 && (dispatch.continues || dispatch.stage != program_.dispatches[i - 1].stage))
                barrier(*commands, Stage::eComputeShader, Stage::eComputeShader, kShader);
            record_dispatch(*commands, i);
        }
        barrier(*commands, Stage::eComputeShader, Stage::eHost, Access::eHostRead);
        commands->end();
    });
    return commands;
}

}  // namespace plait::vulkan
