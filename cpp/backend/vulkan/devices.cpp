#include "backend/vulkan/devices.h"

#include <algorithm>
#include <string_view>

#include "backend/vulkan/features.h"
#include "backend/vulkan/instance.h"
#include "backend/vulkan/settings.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

uint64_t largest_device_heap(vk::PhysicalDevice device) {
    const vk::PhysicalDeviceMemoryProperties memory = device.getMemoryProperties();
    uint64_t largest = 0;
    for (uint32_t i = 0; i < memory.memoryHeapCount; ++i)
        if (memory.memoryHeaps[i].flags & vk::MemoryHeapFlagBits::eDeviceLocal)
            largest = std::max<uint64_t>(largest, memory.memoryHeaps[i].size);
    return largest;
}

bool has_memory_budget(vk::PhysicalDevice device) {
    return std::ranges::any_of(
        device.enumerateDeviceExtensionProperties(), [](const vk::ExtensionProperties& extension) {
            return std::string_view(extension.extensionName) == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
        });
}

DeviceInfo describe(size_t index, vk::PhysicalDevice device) {
    const auto properties =
        device.getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceVulkan11Properties,
                              vk::PhysicalDeviceVulkan12Properties>();
    const auto& core = properties.get<vk::PhysicalDeviceProperties2>().properties;
    const auto& v11 = properties.get<vk::PhysicalDeviceVulkan11Properties>();
    const auto& v12 = properties.get<vk::PhysicalDeviceVulkan12Properties>();
    DeviceInfo info;
    info.name = text("vulkan:", index);
    info.description =
        text(core.deviceName.data(), ", ", v12.driverName.data(), " ", v12.driverInfo.data(),
             ", Vulkan ", VK_API_VERSION_MAJOR(core.apiVersion), ".",
             VK_API_VERSION_MINOR(core.apiVersion));
    info.memory = largest_device_heap(device);
    info.is_gpu = core.deviceType != vk::PhysicalDeviceType::eCpu &&
                  core.deviceType != vk::PhysicalDeviceType::eOther;
    info.usable = missing_features(device).empty();
    info.features = known_features(device);
    info.limits = {
        {"max_allocation_bytes", v11.maxMemoryAllocationSize},
        {"max_shared_bytes", core.limits.maxComputeSharedMemorySize},
        {"max_workgroup_invocations", core.limits.maxComputeWorkGroupInvocations},
        {"subgroup_size", v11.subgroupSize},
    };
    return info;
}

}  // namespace

std::vector<DeviceInfo> devices() {
    std::vector<DeviceInfo> all;
    for (const vk::PhysicalDevice device : Instance::get().devices())
        all.push_back(describe(all.size(), device));
    return all;
}

uint64_t free_memory(size_t index) {
    const vk::PhysicalDevice device = Instance::get().devices()[index];
    using Budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT;
    vk::PhysicalDeviceMemoryProperties2 properties = device.getMemoryProperties2();
    Budget budget;
    const bool has_budget = has_memory_budget(device);
    if (has_budget) {
        const auto both =
            device.getMemoryProperties2<vk::PhysicalDeviceMemoryProperties2, Budget>();
        properties = both.get<vk::PhysicalDeviceMemoryProperties2>();
        budget = both.get<Budget>();
    }
    const vk::PhysicalDeviceMemoryProperties& memory = properties.memoryProperties;
    uint64_t largest = 0, left = 0;
    for (uint32_t i = 0; i < memory.memoryHeapCount; ++i) {
        const vk::MemoryHeap& heap = memory.memoryHeaps[i];
        if (!(heap.flags & vk::MemoryHeapFlagBits::eDeviceLocal) || heap.size <= largest) continue;
        largest = heap.size;
        left = has_budget
                   ? budget.heapBudget[i] - std::min(budget.heapBudget[i], budget.heapUsage[i])
                   : heap.size;
    }
    return std::min(left, max_memory_bytes());
}

std::vector<std::string> cooperative_matrices() {
    return {
#ifdef PLAIT_VULKAN_KHR_MATRICES
        "KHR",
#endif
#ifdef PLAIT_VULKAN_NV_MATRICES
        "NV",
#endif
    };
}

}  // namespace plait::vulkan
