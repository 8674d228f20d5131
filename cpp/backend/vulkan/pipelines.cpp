#include "backend/vulkan/pipelines.h"

#include "backend/vulkan/cooperative_matrix.h"
#include "backend/vulkan/spirv.h"
#include "base/log.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

Driver driver_of(vk::PhysicalDevice device) {
    const auto all =
        device.getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceIDProperties>();
    const auto& core = all.get<vk::PhysicalDeviceProperties2>().properties;
    const auto& ids = all.get<vk::PhysicalDeviceIDProperties>();
    return {core.vendorID, core.deviceID, core.driverVersion, core.pipelineCacheUUID,
            ids.driverUUID};
}

vk::UniquePipelineCache create_cache(vk::Device device, std::span<const std::byte> saved) {
    return device.createPipelineCacheUnique(
        {.initialDataSize = saved.size(), .pInitialData = saved.data()});
}

}  // namespace

Pipelines::Pipelines(vk::PhysicalDevice physical, vk::Device device)
    : device_(device), file_(driver_of(physical)) {
    const vk::PushConstantRange range{.stageFlags = vk::ShaderStageFlagBits::eCompute,
                                      .size = sizeof(Push)};
    layout_ = device.createPipelineLayoutUnique(
        {.pushConstantRangeCount = 1, .pPushConstantRanges = &range});
    try {
        cache_ = create_cache(device, file_.read());
    } catch (const vk::SystemError& error) {
        log(LogLevel::debug, text("vulkan: the saved pipeline cache is not used: ", error.what()));
        cache_ = create_cache(device, {});
    }
}

vk::Pipeline Pipelines::get(std::string_view shader, std::span<const uint32_t> constants) {
    const std::lock_guard lock(mutex_);
    vk::UniquePipeline& pipeline =
        pipelines_[{std::string(shader), {constants.begin(), constants.end()}}];
    if (!pipeline) {
        pipeline = create(shader, constants);
        is_saved_ = false;
    }
    return *pipeline;
}

vk::UniquePipeline Pipelines::create(std::string_view shader,
                                     std::span<const uint32_t> constants) const {
    const std::span<const uint32_t> code = spirv(shader);
    const vk::UniqueShaderModule module =
        device_.createShaderModuleUnique({.codeSize = code.size_bytes(), .pCode = code.data()});
    std::vector<vk::SpecializationMapEntry> entries;
    for (uint32_t i = 0; i < constants.size(); ++i)
        entries.push_back({.constantID = i, .offset = 4 * i, .size = 4});
    vk::PipelineShaderStageCreateFlags flags;
    if (needs_full_subgroups(shader))
        flags = vk::PipelineShaderStageCreateFlagBits::eRequireFullSubgroupsEXT;
    const vk::SpecializationInfo specialization{
        .mapEntryCount = static_cast<uint32_t>(entries.size()),
        .pMapEntries = entries.data(),
        .dataSize = constants.size_bytes(),
        .pData = constants.data()};
    auto created = device_.createComputePipelineUnique(
        *cache_, {.stage = {.flags = flags,
                            .stage = vk::ShaderStageFlagBits::eCompute,
                            .module = *module,
                            .pName = "main",
                            .pSpecializationInfo = &specialization},
                  .layout = *layout_});
    return std::move(created.value);
}

void Pipelines::save() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_saved_, true) || !file_.enabled()) return;
    try {
        const std::vector<uint8_t> data = device_.getPipelineCacheData(*cache_);
        file_.write(std::as_bytes(std::span(data)));
    } catch (const vk::SystemError& error) {
        log(LogLevel::debug, text("vulkan: the pipeline cache is not saved: ", error.what()));
    }
}

}  // namespace plait::vulkan
