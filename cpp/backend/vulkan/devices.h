// The Vulkan devices of this machine: descriptions and free memory. Does not include the Vulkan
// headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plait::vulkan {

struct DeviceInfo {
    std::string name;  // "vulkan:0"
    std::string description;
    uint64_t memory = 0;  // size of the largest device-local heap, in bytes
    bool is_gpu = false;  // false for drivers that compute on the CPU
    bool usable = false;  // has every feature that the shaders require
    std::vector<std::string> features;
    std::vector<std::pair<std::string, uint64_t>> limits;
};

// Describes all devices. Empty if there is no Vulkan loader or no driver.
std::vector<DeviceInfo> devices();

// Returns how many bytes this process can still allocate in the largest device-local heap of the
// n-th device: the budget reported by VK_EXT_memory_budget, or the size of the heap if the driver
// does not report one. At most max_memory_bytes().
uint64_t free_memory(size_t index);

// The extensions for cooperative matrices that this build has shaders for: "KHR", "NV".
std::vector<std::string> cooperative_matrices();

}  // namespace plait::vulkan
