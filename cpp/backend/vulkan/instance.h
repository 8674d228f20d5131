// The Vulkan loader and its devices, found on first use. A machine without a loader or without
// drivers has no devices, which is not an error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

class Instance {
public:
    // Returns the instance of this process, which is never destroyed.
    static const Instance& get();

    // Devices that support Vulkan 1.2: discrete GPUs first, then integrated ones, then others.
    std::span<const vk::PhysicalDevice> devices() const { return devices_; }
    // The reason if there are no devices.
    const std::string& problem() const { return problem_; }

private:
    Instance();
    void open();

    std::optional<either::Loader> loader_;
    std::vector<vk::PhysicalDevice> devices_;
    std::string problem_;
};

}  // namespace plait::vulkan
