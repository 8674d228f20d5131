#include "backend/vulkan/device.h"

#include <algorithm>
#include <array>
#include <limits>

#include "backend/vulkan/features.h"
#include "backend/vulkan/instance.h"
#include "backend/vulkan/spirv.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

uint32_t compute_family(const std::string& name, vk::PhysicalDevice device) {
    const std::vector<vk::QueueFamilyProperties> families = device.getQueueFamilyProperties();
    const auto found = std::ranges::find_if(families, [](const vk::QueueFamilyProperties& family) {
        return bool(family.queueFlags & vk::QueueFlagBits::eCompute);
    });
    if (found == families.end()) throw BackendError(text(name, ": the device does not compute"));
    return static_cast<uint32_t>(found - families.begin());
}

void check_features(const std::string& name, vk::PhysicalDevice device) {
    const std::vector<std::string> missing = missing_features(device);
    if (missing.empty()) return;
    std::string list;
    for (const std::string& feature : missing) list += text(list.empty() ? "" : ", ", feature);
    throw BackendError(text(name, ": ", device.getProperties().deviceName.data(), " lacks ", list));
}

}  // namespace

std::shared_ptr<Device> Device::open(size_t index) {
    static std::mutex mutex;
    static auto* opened = new std::vector<std::shared_ptr<Device>>;  // open as long as the process
    const std::lock_guard lock(mutex);
    const Instance& instance = Instance::get();
    const size_t n = instance.devices().size();
    if (n == 0) throw BackendError(text("vulkan: no device: ", instance.problem()));
    if (index >= n)
        throw BackendError(
            text("vulkan:", index, " does not exist: expected vulkan:0 to vulkan:", n - 1));
    opened->resize(n);
    std::shared_ptr<Device>& device = (*opened)[index];
    if (!device || device->lost_) {
        const int generation = device ? device->generation_ + 1 : 0;
        device = std::shared_ptr<Device>(new Device(index, generation, instance.devices()[index]));
    }
    return device;
}

Device::Device(size_t index, int generation, vk::PhysicalDevice physical)
    : name_(text("vulkan:", index)),
      generation_(generation),
      memory_(physical.getMemoryProperties()) {
    check_features(name_, physical);
    queue_family_ = compute_family(name_, physical);
    attempt("cannot open the device", [&] {
        const float priority = 1.0f;
        const vk::DeviceQueueCreateInfo queue{
            .queueFamilyIndex = queue_family_, .queueCount = 1, .pQueuePriorities = &priority};
        const Features features = needed_features();
        device_ =
            physical.createDeviceUnique({.pNext = &features.get<vk::PhysicalDeviceFeatures2>(),
                                         .queueCreateInfoCount = 1,
                                         .pQueueCreateInfos = &queue});
        queue_ = device_->getQueue(queue_family_, 0);
        const vk::PushConstantRange range{.stageFlags = vk::ShaderStageFlagBits::eCompute,
                                          .size = sizeof(Push)};
        layout_ = device_->createPipelineLayoutUnique(
            {.pushConstantRangeCount = 1, .pPushConstantRanges = &range});
        once_pool_ = device_->createCommandPoolUnique(
            {.flags = vk::CommandPoolCreateFlagBits::eResetCommandBuffer,
             .queueFamilyIndex = queue_family_});
        once_commands_ = std::move(device_->allocateCommandBuffersUnique(
            {.commandPool = *once_pool_, .commandBufferCount = 1})[0]);
        once_fence_ = device_->createFenceUnique({});
    });
}

vk::Pipeline Device::pipeline(std::string_view shader, std::span<const uint32_t> constants) {
    const std::lock_guard lock(pipelines_mutex_);
    vk::UniquePipeline& known =
        pipelines_[{std::string(shader), {constants.begin(), constants.end()}}];
    if (known) return *known;
    attempt(text("cannot compile shader ", shader), [&] {
        const std::span<const uint32_t> code = spirv(shader);
        const vk::UniqueShaderModule module = device_->createShaderModuleUnique(
            {.codeSize = code.size_bytes(), .pCode = code.data()});
        std::vector<vk::SpecializationMapEntry> entries;
        for (uint32_t i = 0; i < constants.size(); ++i)
            entries.push_back({.constantID = i, .offset = 4 * i, .size = 4});
        const vk::SpecializationInfo specialization{
            .mapEntryCount = static_cast<uint32_t>(entries.size()),
            .pMapEntries = entries.data(),
            .dataSize = constants.size_bytes(),
            .pData = constants.data()};
        known = device_
                    ->createComputePipelineUnique(
                        {}, {.stage = {.stage = vk::ShaderStageFlagBits::eCompute,
                                       .module = *module,
                                       .pName = "main",
                                       .pSpecializationInfo = &specialization},
                             .layout = *layout_})
                    .value;
    });
    return *known;
}

void Device::run(vk::CommandBuffer commands, vk::Fence fence) {
    attempt("cannot run", [&] {
        device_->resetFences(fence);
        {
            const std::lock_guard lock(queue_mutex_);
            queue_.submit(vk::SubmitInfo{.commandBufferCount = 1, .pCommandBuffers = &commands},
                          fence);
        }
        const vk::Result result =
            device_->waitForFences(fence, VK_TRUE, std::numeric_limits<uint64_t>::max());
        PLAIT_CHECK(result == vk::Result::eSuccess);
    });
}

void Device::begin_once() {
    attempt("cannot record", [&] {
        once_commands_->begin({.flags = vk::CommandBufferUsageFlagBits::eOneTimeSubmit});
    });
}

void Device::end_once() {
    attempt("cannot record", [&] { once_commands_->end(); });
    run(*once_commands_, *once_fence_);
}

void Device::fail(std::string_view doing, const vk::SystemError& error) {
    if (error.code() == vk::make_error_code(vk::Result::eErrorDeviceLost)) lost_ = true;
    throw BackendError(text(name_, ": ", doing, ": ", error.what()));
}

}  // namespace plait::vulkan
