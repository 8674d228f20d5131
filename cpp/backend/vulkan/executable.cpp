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
constexpr uint64_t kArgsAlignment = 16;  // that buffer_reference assumes

// What comes later waits for what came before and sees what it wrote.
void wait(vk::CommandBuffer commands, vk::PipelineStageFlags from, vk::PipelineStageFlags to,
          vk::AccessFlags reads) {
    const vk::MemoryBarrier barrier{.srcAccessMask = Access::eMemoryWrite, .dstAccessMask = reads};
    commands.pipelineBarrier(from, to, {}, barrier, {}, {});
}

uint64_t grid_offset(size_t step) { return sizeof(Frame) + step * sizeof(Grid); }

// Offsets of the steps' arguments, and of what is behind the last.
std::vector<uint64_t> lay_out(const std::vector<Step>& steps) {
    std::vector<uint64_t> offsets;
    uint64_t at = grid_offset(steps.size());
    for (const Step& step : steps) {
        offsets.push_back(align_up(at, kArgsAlignment));
        at = offsets.back() + step.args.size();
    }
    offsets.push_back(align_up(at, kArgsAlignment));
    return offsets;
}

}  // namespace

VulkanExecutable::VulkanExecutable(Commands& commands, Program program)
    : commands_(commands),
      program_(std::move(program)),
      memory_(commands.device(), lay_out(program_.steps).back() + program_.constants.size(),
              Residence::upload),
      args_(lay_out(program_.steps)) {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
        const Step& step = program_.steps[i];
        pipelines_.push_back(commands.device()->attempt(
            text("cannot compile shader ", step.shader),
            [&] { return commands.device()->pipelines().get(step.shader, step.constants); }));
        memory_.write(args_[i], step.args);
    }
    memory_.write(args_.back(), program_.constants);
    for (size_t i = 0; i < program_.outputs.size(); ++i)
        commands.reserve_output(i, program_.outputs[i].bytes());
    commands.device()->pipelines().keep();
    recorded_ = record();
}

void VulkanExecutable::run(const RunArguments& run) {
    const auto stopped = [&] { return run.stop != nullptr && run.stop->requested(); };
    if (stopped()) throw Interrupted();
    commands_.integrity()->check();
    const Frame frame = refresh(run);
    const auto go = [&] {
        if (run.trace != nullptr)
            run_traced(*run.trace);
        else
            commands_.run(*recorded_, !std::exchange(has_run_, true));
    };
    // The context's memory has noted moves before they are made.
    if (run.counts.moves > 0)
        commands_.integrity()->change(go);
    else
        go();
    if (stopped()) throw Interrupted();
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
        const OutputRows& output = program_.outputs[i];
        if (output.row_bytes == 0 || run.outputs[i] == nullptr) continue;
        commands_.output(i)->read(0, {run.outputs[i], output.rows.in(frame)*output.row_bytes});
    }
}

Frame VulkanExecutable::refresh(const RunArguments& run) {
    Frame frame;
    frame.base[kArena] = address_of(*run.arena);
    frame.base[kInputs] = address_of(*run.inputs);
    frame.base[kOutput0] = commands_.output(0)->address();
    frame.base[kOutput1] = commands_.output(1)->address();
    frame.base[kConstants] = memory_.address() + args_.back();
    frame.rows[kTokens] = static_cast<uint32_t>(run.counts.tokens);
    frame.rows[kOutputs] = static_cast<uint32_t>(run.counts.outputs);
    frame.rows[kMoves] = static_cast<uint32_t>(run.counts.moves);
    frame.rows[kSequences] = static_cast<uint32_t>(run.counts.sequences);
    std::memcpy(memory_.host(), &frame, sizeof frame);
    for (size_t i = 0; i < program_.steps.size(); ++i) {
        const std::array<Axis, 3>& grid = program_.steps[i].grid;
        const Grid groups{grid[0].groups(frame), grid[1].groups(frame), grid[2].groups(frame)};
        std::memcpy(memory_.host() + grid_offset(i), &groups, sizeof groups);
    }
    return frame;
}

void VulkanExecutable::dispatch(vk::CommandBuffer commands, size_t step) const {
    const Push push{memory_.address() + args_[step], memory_.address()};
    commands.bindPipeline(vk::PipelineBindPoint::eCompute, pipelines_[step]);
    commands.pushConstants(commands_.device()->pipelines().layout(),
                           vk::ShaderStageFlagBits::eCompute, 0, sizeof push, &push);
    commands.dispatchIndirect(memory_.handle(), grid_offset(step));
}

// One step after the other, each with a submission of its own, so that the host sees how long it
// takes.
void VulkanExecutable::run_traced(Trace& trace) {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
        const int64_t begin_ns = Trace::now();
        commands_.device()->transfer().run_once([&](vk::CommandBuffer commands) {
            wait(commands, Stage::eAllCommands, Stage::eComputeShader, kShader);
            dispatch(commands, i);
            wait(commands, Stage::eComputeShader, Stage::eHost, Access::eHostRead);
        });
        trace.add(program_.steps[i].node, 0, begin_ns);
    }
}

vk::UniqueCommandBuffer VulkanExecutable::record() const {
    vk::UniqueCommandBuffer commands = commands_.make();
    commands_.device()->attempt("cannot record a plan", [&] {
        commands->begin(vk::CommandBufferBeginInfo{});
        wait(*commands, Stage::eAllCommands, Stage::eComputeShader, kShader);  // for earlier runs
        for (size_t i = 0; i < program_.steps.size(); ++i) {
            const Step& step = program_.steps[i];
            if (i > 0 && (step.continues || step.stage != program_.steps[i - 1].stage))
                wait(*commands, Stage::eComputeShader, Stage::eComputeShader, kShader);
            dispatch(*commands, i);
        }
        wait(*commands, Stage::eComputeShader, Stage::eHost, Access::eHostRead);
        commands->end();
    });
    return commands;
}

}  // namespace plait::vulkan
