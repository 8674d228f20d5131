// How much memory a device can still give.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plait::vulkan {

// Of the largest heap of the n-th device that is its own: what VK_EXT_memory_budget says is left for
// this process, or all of it where the driver does not say. At most PLAIT_VULKAN_MEMORY MiB, where
// that is set.
uint64_t free_memory(size_t index);

}  // namespace plait::vulkan
