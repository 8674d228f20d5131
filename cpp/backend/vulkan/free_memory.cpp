#include "backend/vulkan/free_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "backend/vulkan/instance.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

bool says_budgets(vk::PhysicalDevice device) {
    return std::ranges::any_of(
        device.enumerateDeviceExtensionProperties(), [](const vk::ExtensionProperties& extension) {
            return std::string_view(extension.extensionName) == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
        });
}

// What the user leaves us.
uint64_t most_bytes() {
    const char* value = std::getenv("PLAIT_VULKAN_MEMORY");
    if (value == nullptr || *value == '\0') return UINT64_MAX;
    const std::string_view digits(value);
    uint64_t mib = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), mib);
    if (error != std::errc() || end != digits.data() + digits.size() || mib > UINT64_MAX >> 20)
        throw BackendError(
            text("PLAIT_VULKAN_MEMORY: expected a number of MiB, got \"", digits, "\""));
    return mib << 20;
}

}  // namespace

uint64_t free_memory(size_t index) {
    const vk::PhysicalDevice device = Instance::get().devices()[index];
    using Budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT;
    vk::PhysicalDeviceMemoryProperties2 properties = device.getMemoryProperties2();
    Budget budget;
    const bool known = says_budgets(device);
    if (known) {
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
        left = known ? budget.heapBudget[i] - std::min(budget.heapBudget[i], budget.heapUsage[i])
                     : heap.size;
    }
    return std::min(left, most_bytes());
}

}  // namespace plait::vulkan
