// The Vulkan devices of this machine, described for people and for choosing one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plait::vulkan {

struct DeviceInfo {
    std::string name;  // "vulkan:0"
    std::string description;
    uint64_t memory = 0;  // bytes of its largest own heap
    bool is_gpu = false;  // not a driver that computes on the processor
    bool usable = false;  // has every feature that the shaders need
    std::vector<std::string> features;
    std::vector<std::pair<std::string, uint64_t>> limits;
};

// None where there is no loader or no driver.
std::vector<DeviceInfo> devices();
// The extensions for cooperative matrices that this build has shaders for: "KHR", "NV".
std::vector<std::string> cooperative_matrices();

}  // namespace plait::vulkan
