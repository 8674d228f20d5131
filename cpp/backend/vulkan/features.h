// What the shaders need of a device, by the names of the specification.
#pragma once

#include <string>
#include <vector>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

using Features = vk::StructureChain<vk::PhysicalDeviceFeatures2, vk::PhysicalDeviceVulkan11Features,
                                    vk::PhysicalDeviceVulkan12Features>;

// Those that every shader uses, set.
Features needed_features();
// Names of the needed ones that a device lacks.
std::vector<std::string> missing_features(vk::PhysicalDevice device);
// Names of what a device has, of all that matters to a runtime like this; "cooperative_matrix 16x16x16"
// where this build multiplies matrices of that shape there.
std::vector<std::string> known_features(vk::PhysicalDevice device);

}  // namespace plait::vulkan
