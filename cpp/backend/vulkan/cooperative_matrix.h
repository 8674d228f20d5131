// Cooperative matrices: a subgroup multiplies small matrices in one operation. Selects a shape that
// both the device and this build support, and requests the features that it needs. Two extensions
// offer the same operations: VK_KHR_cooperative_matrix needs a newer shader compiler and newer
// headers at build time than VK_NV_cooperative_matrix.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/vulkan/devices.h"
#include "backend/vulkan/features.h"
#include "backend/vulkan/vk.h"

namespace plait::vulkan {

// Their name in PLAIT_VULKAN_WITHOUT.
inline constexpr std::string_view kCooperativeMatrix = "cooperative_matrix";

// Returns the largest shape with f16 factors and f32 sums that the device offers and the tiles of
// our shaders can be divided into. Empty if the device or the build lacks something that the
// shaders need. The KHR extension is preferred.
std::optional<CooperativeMatrix> cooperative_matrix(vk::PhysicalDevice device);

// Returns the name of the product shader for an extension.
std::string_view shader_of(MatrixExtension extension);
// Returns true if a shader uses cooperative matrices, which require all invocations of a subgroup.
bool needs_full_subgroups(std::string_view shader);

// The features and extensions to request when a device is created. Must outlive that call.
class CooperativeMatrixRequest {
public:
    void add(MatrixExtension extension, Features& features, std::vector<const char*>& extensions);

private:
    vk::PhysicalDeviceSubgroupSizeControlFeaturesEXT subgroups_;
    vk::PhysicalDeviceCooperativeMatrixFeaturesNV nv_;
#ifdef PLAIT_VULKAN_KHR_MATRICES
    vk::PhysicalDeviceCooperativeMatrixFeaturesKHR khr_;
#endif
};

}  // namespace plait::vulkan
