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

// What the shader needs in either dialect. Where a device is asked for its memory model, barriers of
// other shaders have to ask for the scope of the device.
bool has_the_rest(vk::PhysicalDevice device, const Extensions& extensions) {
    if (!extensions.contains(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) return false;
    const auto v12 = feature_of<vk::PhysicalDeviceVulkan12Features>(device);
    return v12.shaderFloat16 && v12.vulkanMemoryModel && v12.vulkanMemoryModelDeviceScope &&
           feature_of<vk::PhysicalDeviceSubgroupSizeControlFeaturesEXT>(device)
               .computeFullSubgroups;
}

// Tiles are 64 outputs by m rows or more and 32 columns deep, and halves are read 8 at a time.
bool fits(uint32_t m, uint32_t n, uint32_t k) {
    const auto part = [](uint32_t size, uint32_t most) {
        return size >= 8 && size <= most && std::has_single_bit(size);
    };
    return part(m, 32) && part(n, 32) && part(k, 32);
}

#if defined(PLAIT_VULKAN_KHR_MATRICES) || defined(PLAIT_VULKAN_NV_MATRICES)
// Of the shapes that a device lists, in either's words.
template <typename Type, typename Scope, typename Shapes>
std::optional<CooperativeMatrix> largest(Dialect dialect, const Shapes& shapes) {
    std::optional<CooperativeMatrix> best;
    const auto rank = [](const CooperativeMatrix& s) { return std::tuple(s.m * s.n * s.k, s.m); };
    for (const auto& shape : shapes) {
        const CooperativeMatrix found{dialect, shape.MSize, shape.NSize, shape.KSize};
        if (shape.AType == Type::eFloat16 && shape.BType == Type::eFloat16 &&
            shape.CType == Type::eFloat32 && shape.scope == Scope::eSubgroup &&
            fits(found.m, found.n, found.k) && (!best || rank(found) > rank(*best)))
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
        return largest<vk::ComponentTypeKHR, vk::ScopeKHR>(Dialect::khr, shapes);
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
        return largest<vk::ComponentTypeNV, vk::ScopeNV>(Dialect::nv, shapes);
    }
#endif
    (void)device, (void)extensions;
    return std::nullopt;
}

}  // namespace

std::optional<CooperativeMatrix> cooperative_matrix(vk::PhysicalDevice device) {
    const Extensions extensions = extensions_of(device);
    if (!has_the_rest(device, extensions)) return std::nullopt;
    const auto khr = khr_shape(device, extensions);
    return khr ? khr : nv_shape(device, extensions);
}

std::string_view shader_of(Dialect dialect) {
    return dialect == Dialect::khr ? "product_matrices_khr" : "product_matrices_nv";
}

bool needs_full_subgroups(std::string_view shader) {
    return shader.starts_with("product_matrices");
}

void CooperativeMatrixRequest::add(Dialect dialect, Features& features,
                                   std::vector<const char*>& extensions) {
    auto& v12 = features.get<vk::PhysicalDeviceVulkan12Features>();
    v12.shaderFloat16 = VK_TRUE;
    v12.vulkanMemoryModel = VK_TRUE;
    v12.vulkanMemoryModelDeviceScope = VK_TRUE;
    subgroups_.computeFullSubgroups = VK_TRUE;
    subgroups_.pNext = std::exchange(v12.pNext, &subgroups_);
    extensions.push_back(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    if (dialect == Dialect::nv) {
        nv_.cooperativeMatrix = VK_TRUE;
        nv_.pNext = std::exchange(v12.pNext, &nv_);
        extensions.push_back(VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#ifdef PLAIT_VULKAN_KHR_MATRICES
    if (dialect == Dialect::khr) {
        khr_.cooperativeMatrix = VK_TRUE;
        khr_.pNext = std::exchange(v12.pNext, &khr_);
        extensions.push_back(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#endif
}

}  // namespace plait::vulkan
