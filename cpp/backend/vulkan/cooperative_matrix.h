// Products of small matrices that a subgroup does as one operation: which of them a device and this
// build have in common, and what it takes to use them. Two extensions offer the same in other words:
// VK_KHR_cooperative_matrix, for which the build needs a younger shader compiler and younger headers than
// for VK_NV_cooperative_matrix.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/vulkan/features.h"
#include "backend/vulkan/limits.h"
#include "backend/vulkan/vk.h"

namespace plait::vulkan {

// What users call them in PLAIT_VULKAN_WITHOUT.
inline constexpr std::string_view kCooperativeMatrix = "cooperative_matrix";

// The largest shape of f16 factors and f32 sums that the device offers and our tiles are made of; none
// where the device or the build lacks anything that the shaders need. KHR comes first.
std::optional<CooperativeMatrix> cooperative_matrix(vk::PhysicalDevice device);

// The shader of products in that dialect's words.
std::string_view shader_of(Dialect dialect);
// Whether a shader is one of those: matrices are a subgroup's as a whole.
bool needs_full_subgroups(std::string_view shader);

// What a device is asked for to have them. Outlives the call that makes the device.
class CooperativeMatrixRequest {
public:
    // Adds to features that the device is made with, and to its extensions.
    void add(Dialect dialect, Features& features, std::vector<const char*>& extensions);

private:
    vk::PhysicalDeviceSubgroupSizeControlFeaturesEXT subgroups_;
    vk::PhysicalDeviceCooperativeMatrixFeaturesNV nv_;
#ifdef PLAIT_VULKAN_KHR_MATRICES
    vk::PhysicalDeviceCooperativeMatrixFeaturesKHR khr_;
#endif
};

}  // namespace plait::vulkan
