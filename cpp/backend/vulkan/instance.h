// The Vulkan loader and its devices, found when someone first asks. A machine without a loader or
// without drivers simply has no devices.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

class Instance {
public:
    // The one of this process, which lives as long.
    static const Instance& get();

    // Those that run compute shaders of Vulkan 1.2: discrete GPUs, then integrated, then others.
    std::span<const vk::PhysicalDevice> devices() const { return devices_; }
    // Why there are none.
    const std::string& problem() const { return problem_; }

private:
    Instance();
    void open();

    std::optional<either::Loader> loader_;
    std::vector<vk::PhysicalDevice> devices_;
    std::string problem_;
};

}  // namespace plait::vulkan
