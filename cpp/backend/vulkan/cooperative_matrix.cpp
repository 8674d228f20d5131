#include "backend/vulkan/cooperative_matrix.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace plait::vulkan {
namespace {

using Extensions = std::set<std::string, std::less<>>;

Extensions extensions_of(vk::PhysicalDevice device) {
    Extensions names;
    for (const vk::ExtensionProperties& extension : device.enumerateDeviceExtensionProperties())
        names.emplace(extension.extensionName.data());
    return names;
}

template <typename Struct>
Struct feature_of(vk::PhysicalDevice device) {
    return device.getFeatures2<vk::PhysicalDeviceFeatures2, Struct>().template get<Struct>();
}

// Returns true if a device has the features that the shaders need in addition to one of the
// extensions. If a device is created with the Vulkan memory model, barriers in other shaders
// require its device scope as well.
bool has_common_features(vk::PhysicalDevice device, const Extensions& extensions) {
    if (!extensions.contains(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) return false;
    const auto v12 = feature_of<vk::PhysicalDeviceVulkan12Features>(device);
    return v12.shaderFloat16 && v12.vulkanMemoryModel && v12.vulkanMemoryModelDeviceScope &&
           feature_of<vk::PhysicalDeviceSubgroupSizeControlFeaturesEXT>(device)
               .computeFullSubgroups;
}

// Tiles have at least 32 rows, 64 outputs and a depth of 32 columns, and halves are read 8 at a
// time.
bool divides_tiles(uint32_t m, uint32_t n, uint32_t k) {
    const auto divides = [](uint32_t size, uint32_t tile) {
        return size >= 8 && size <= tile && std::has_single_bit(size);
    };
    return divides(m, 32) && divides(n, 32) && divides(k, 32);
}

#if defined(PLAIT_VULKAN_KHR_MATRICES) || defined(PLAIT_VULKAN_NV_MATRICES)
// Returns the largest usable shape that a device lists. Works for the structs of both extensions.
template <typename Type, typename Scope, typename Shapes>
std::optional<CooperativeMatrix> largest_shape(MatrixExtension extension, const Shapes& shapes) {
    std::optional<CooperativeMatrix> best;
    const auto rank = [](const CooperativeMatrix& s) { return std::tuple(s.m * s.n * s.k, s.m); };
    for (const auto& shape : shapes) {
        const CooperativeMatrix found{extension, shape.MSize, shape.NSize, shape.KSize};
        if (shape.AType == Type::eFloat16 && shape.BType == Type::eFloat16 &&
            shape.CType == Type::eFloat32 && shape.scope == Scope::eSubgroup &&
            divides_tiles(found.m, found.n, found.k) && (!best || rank(found) > rank(*best)))
            best = found;
    }
    return best;
}
#endif

std::optional<CooperativeMatrix> khr_shape(vk::PhysicalDevice device,
                                           const Extensions& extensions) {
#ifdef PLAIT_VULKAN_KHR_MATRICES
    if (extensions.contains(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) &&
        feature_of<vk::PhysicalDeviceCooperativeMatrixFeaturesKHR>(device).cooperativeMatrix) {
        std::vector<vk::CooperativeMatrixPropertiesKHR> shapes =
            device.getCooperativeMatrixPropertiesKHR();
        std::erase_if(shapes, [](const vk::CooperativeMatrixPropertiesKHR& shape) {
            return shape.ResultType != shape.CType || shape.saturatingAccumulation;
        });
        return largest_shape<vk::ComponentTypeKHR, vk::ScopeKHR>(MatrixExtension::khr, shapes);
    }
#endif
    (void)device, (void)extensions;
    return std::nullopt;
}

std::optional<CooperativeMatrix> nv_shape(vk::PhysicalDevice device, const Extensions& extensions) {
#ifdef PLAIT_VULKAN_NV_MATRICES
    if (extensions.contains(VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME) &&
        feature_of<vk::PhysicalDeviceCooperativeMatrixFeaturesNV>(device).cooperativeMatrix) {
        std::vector<vk::CooperativeMatrixPropertiesNV> shapes =
            device.getCooperativeMatrixPropertiesNV();
        std::erase_if(shapes, [](const vk::CooperativeMatrixPropertiesNV& shape) {
            return shape.DType != shape.CType;
        });
        return largest_shape<vk::ComponentTypeNV, vk::ScopeNV>(MatrixExtension::nv, shapes);
    }
#endif
    (void)device, (void)extensions;
    return std::nullopt;
}

}  // namespace

std::optional<CooperativeMatrix> cooperative_matrix(vk::PhysicalDevice device) {
    const Extensions extensions = extensions_of(device);
    if (!has_common_features(device, extensions)) return std::nullopt;
    const auto khr = khr_shape(device, extensions);
    return khr ? khr : nv_shape(device, extensions);
}

std::string_view shader_of(MatrixExtension extension) {
    return extension == MatrixExtension::khr ? "product_matrices_khr" : "product_matrices_nv";
}

bool needs_full_subgroups(std::string_view shader) {
    return shader.starts_with("product_matrices");
}

void CooperativeMatrixRequest::add(MatrixExtension extension, Features& features,
                                   std::vector<const char*>& extensions) {
    auto& v12 = features.get<vk::PhysicalDeviceVulkan12Features>();
    v12.shaderFloat16 = VK_TRUE;
    v12.vulkanMemoryModel = VK_TRUE;
    v12.vulkanMemoryModelDeviceScope = VK_TRUE;
    subgroups_.computeFullSubgroups = VK_TRUE;
    subgroups_.pNext = std::exchange(v12.pNext, &subgroups_);
    extensions.push_back(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    if (extension == MatrixExtension::nv) {
        nv_.cooperativeMatrix = VK_TRUE;
        nv_.pNext = std::exchange(v12.pNext, &nv_);
        extensions.push_back(VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#ifdef PLAIT_VULKAN_KHR_MATRICES
    if (extension == MatrixExtension::khr) {
        khr_.cooperativeMatrix = VK_TRUE;
        khr_.pNext = std::exchange(v12.pNext, &khr_);
        extensions.push_back(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#endif
}

}  // namespace plait::vulkan
