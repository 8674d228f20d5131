// Device features that the shaders need, by their names in the Vulkan specification.
#pragma once

#include <string>
#include <vector>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

using Features = vk::StructureChain<vk::PhysicalDeviceFeatures2, vk::PhysicalDeviceVulkan11Features,
                                    vk::PhysicalDeviceVulkan12Features>;

// Returns a chain in which the features that every shader uses are enabled.
Features required_features();
// Returns the names of the required features that a device lacks.
std::vector<std::string> missing_features(vk::PhysicalDevice device);
// Returns the names of all features of a device that are relevant to plait, for display. Includes
// "cooperative_matrix 16x16x16" if this build uses cooperative matrices of that shape on the
// device.
std::vector<std::string> known_features(vk::PhysicalDevice device);

}  // namespace plait::vulkan
