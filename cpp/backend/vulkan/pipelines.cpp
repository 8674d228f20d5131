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

vk::UniquePipelineCache make_cache(vk::Device device, std::span<const std::byte> kept) {
    return device.createPipelineCacheUnique(
        {.initialDataSize = kept.size(), .pInitialData = kept.data()});
}

}  // namespace

Pipelines::Pipelines(vk::PhysicalDevice physical, vk::Device device)
    : device_(device), file_(driver_of(physical)) {
    const vk::PushConstantRange range{.stageFlags = vk::ShaderStageFlagBits::eCompute,
                                      .size = sizeof(Push)};
    layout_ = device.createPipelineLayoutUnique(
        {.pushConstantRangeCount = 1, .pPushConstantRanges = &range});
    try {
        cache_ = make_cache(device, file_.read());
    } catch (const vk::SystemError& error) {
        log(LogLevel::debug, text("vulkan: kept pipelines are not used: ", error.what()));
        cache_ = make_cache(device, {});
    }
}

vk::Pipeline Pipelines::get(std::string_view shader, std::span<const uint32_t> constants) {
    const std::lock_guard lock(mutex_);
    vk::UniquePipeline& known = known_[{std::string(shader), {constants.begin(), constants.end()}}];
    if (!known) {
        known = make(shader, constants);
        is_kept_ = false;
    }
    return *known;
}

vk::UniquePipeline Pipelines::make(std::string_view shader,
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
    auto made = device_.createComputePipelineUnique(
        *cache_, {.stage = {.flags = flags,
                            .stage = vk::ShaderStageFlagBits::eCompute,
                            .module = *module,
                            .pName = "main",
                            .pSpecializationInfo = &specialization},
                  .layout = *layout_});
    return std::move(made.value);
}

void Pipelines::keep() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_kept_, true) || !file_.wanted()) return;
    try {
        const std::vector<uint8_t> data = device_.getPipelineCacheData(*cache_);
        file_.write(std::as_bytes(std::span(data)));
    } catch (const vk::SystemError& error) {
        log(LogLevel::debug, text("vulkan: pipelines are not kept: ", error.what()));
    }
}

}  // namespace plait::vulkan
