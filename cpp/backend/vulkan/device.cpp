#include "backend/vulkan/device.h"

#include <algorithm>
#include <limits>

#include "backend/vulkan/cooperative_matrix.h"
#include "backend/vulkan/features.h"
#include "backend/vulkan/instance.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

uint32_t compute_family(const std::string& name, vk::PhysicalDevice device) {
    const std::vector<vk::QueueFamilyProperties> families = device.getQueueFamilyProperties();
    const auto found = std::ranges::find_if(families, [](const vk::QueueFamilyProperties& family) {
        return bool(family.queueFlags & vk::QueueFlagBits::eCompute);
    });
    if (found == families.end())
        throw BackendError(text(name, ": the device has no compute queue"));
    return static_cast<uint32_t>(found - families.begin());
}

Limits limits_of(vk::PhysicalDevice device) {
    const auto all =
        device
            .getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceSubgroupProperties>();
    const vk::PhysicalDeviceLimits& core =
        all.get<vk::PhysicalDeviceProperties2>().properties.limits;
    return {all.get<vk::PhysicalDeviceSubgroupProperties>().subgroupSize,
            core.maxComputeWorkGroupInvocations, core.maxComputeSharedMemorySize,
            cooperative_matrix(device)};
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
    static auto* opened = new std::vector<std::shared_ptr<Device>>;  // never closed
    const std::lock_guard lock(mutex);
    const Instance& instance = Instance::get();
    const size_t n = instance.devices().size();
    if (n == 0) throw BackendError(text("vulkan: no device: ", instance.problem()));
    if (index >= n)
        throw BackendError(text("vulkan:", index, " does not exist: expected vulkan:0",
                                n == 1 ? std::string() : text(" to vulkan:", n - 1)));
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
      memory_(physical.getMemoryProperties()),
      limits_(limits_of(physical)) {
    check_features(name_, physical);
    queue_family_ = compute_family(name_, physical);
    attempt("cannot open the device", [&] { create(physical); });
    transfer_.emplace(*this);
}

void Device::create(vk::PhysicalDevice physical) {
    const float priority = 1.0f;
    const vk::DeviceQueueCreateInfo queue{
        .queueFamilyIndex = queue_family_, .queueCount = 1, .pQueuePriorities = &priority};
    Features features = required_features();
    std::vector<const char*> extensions;
    CooperativeMatrixRequest matrix;
    if (limits_.matrix) matrix.add(limits_.matrix->extension, features, extensions);
    device_ = physical.createDeviceUnique(
        {.pNext = &features.get<vk::PhysicalDeviceFeatures2>(),
         .queueCreateInfoCount = 1,
         .pQueueCreateInfos = &queue,
         .enabledExtensionCount = static_cast<uint32_t>(extensions.size()),
         .ppEnabledExtensionNames = extensions.data()});
    queue_ = device_->getQueue(queue_family_, 0);
    pipelines_.emplace(physical, *device_);
}

Allocation Device::allocate(uint64_t bytes, MemoryKind kind) {
    const std::string action = text("cannot allocate ", bytes, " bytes");
    if (bytes > UINT64_MAX / 2) throw BackendError(text(name_, ": ", action));
    return attempt(action, [&] { return Allocation(*device_, memory_, bytes, kind); });
}

void Device::run(vk::CommandBuffer commands, vk::Fence fence) {
    check();
    attempt("cannot submit commands", [&] {
        device_->resetFences(fence);
        const std::lock_guard lock(queue_mutex_);
        queue_.submit(vk::SubmitInfo{.commandBufferCount = 1, .pCommandBuffers = &commands}, fence);
    });
    attempt("cannot wait for commands", [&] {
        try {
            const vk::Result result =
                device_->waitForFences(fence, VK_TRUE, std::numeric_limits<uint64_t>::max());
            PLAIT_CHECK(result == vk::Result::eSuccess);
        } catch (const vk::SystemError&) {
            lost_ = true;  // for any error: commands that are still running may write at any time
            throw;
        }
    });
}

void Device::check() const {
    if (lost_)
        throw BackendError(text(name_,
                                ": the device was lost, and this context's memory with it; "
                                "create a new context to reopen the device"));
}

void Device::fail(std::string_view action, const vk::SystemError& error) {
    if (error.code() == vk::make_error_code(vk::Result::eErrorDeviceLost)) lost_ = true;
    throw BackendError(text(name_, ": ", action, ": ", error.what()));
}

}  // namespace plait::vulkan
