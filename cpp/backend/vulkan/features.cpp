#include "backend/vulkan/features.h"

#include <string_view>

#include "backend/vulkan/cooperative_matrix.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

struct Feature {
    const char* name;
    bool required;
    vk::Bool32& (*of)(Features& features);
};

constexpr Feature kFeatures[] = {
    {"bufferDeviceAddress", true,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan12Features>().bufferDeviceAddress;
     }},
    {"scalarBlockLayout", true,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan12Features>().scalarBlockLayout;
     }},
    {"shaderInt64", true,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceFeatures2>().features.shaderInt64;
     }},
    {"storageBuffer8BitAccess", true,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan12Features>().storageBuffer8BitAccess;
     }},
    {"storageBuffer16BitAccess", true,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan11Features>().storageBuffer16BitAccess;
     }},
    {"shaderFloat16", false,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan12Features>().shaderFloat16;
     }},
    {"shaderInt8", false,
     [](Features& f) -> vk::Bool32& {
         return f.get<vk::PhysicalDeviceVulkan12Features>().shaderInt8;
     }},
};

// Extensions to list: some make kernels faster, one reports free memory.
constexpr std::string_view kExtensions[] = {"VK_KHR_cooperative_matrix", "VK_NV_cooperative_matrix",
                                            "VK_KHR_shader_integer_dot_product",
                                            "VK_EXT_memory_budget"};

Features features_of(vk::PhysicalDevice device) {
    return device.getFeatures2<vk::PhysicalDeviceFeatures2, vk::PhysicalDeviceVulkan11Features,
                               vk::PhysicalDeviceVulkan12Features>();
}

// Subgroup arithmetic is reported as a property of the device, not as a feature.
bool has_subgroup_arithmetic(vk::PhysicalDevice device) {
    const auto all =
        device
            .getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceSubgroupProperties>();
    const auto& subgroups = all.get<vk::PhysicalDeviceSubgroupProperties>();
    return (subgroups.supportedOperations & vk::SubgroupFeatureFlagBits::eArithmetic) &&
           (subgroups.supportedStages & vk::ShaderStageFlagBits::eCompute);
}
constexpr const char* kSubgroupArithmetic = "subgroup arithmetic";

}  // namespace

Features required_features() {
    Features features;
    for (const Feature& feature : kFeatures)
        if (feature.required) feature.of(features) = VK_TRUE;
    return features;
}

std::vector<std::string> missing_features(vk::PhysicalDevice device) {
    Features features = features_of(device);
    std::vector<std::string> missing;
    for (const Feature& feature : kFeatures)
        if (feature.required && !feature.of(features)) missing.emplace_back(feature.name);
    if (!has_subgroup_arithmetic(device)) missing.emplace_back(kSubgroupArithmetic);
    return missing;
}

std::vector<std::string> known_features(vk::PhysicalDevice device) {
    Features features = features_of(device);
    std::vector<std::string> known;
    for (const Feature& feature : kFeatures)
        if (feature.of(features)) known.emplace_back(feature.name);
    if (has_subgroup_arithmetic(device)) known.emplace_back(kSubgroupArithmetic);
    for (const vk::ExtensionProperties& extension : device.enumerateDeviceExtensionProperties())
        for (const std::string_view name : kExtensions)
            if (name == std::string_view(extension.extensionName)) known.emplace_back(name);
    if (const auto matrix = cooperative_matrix(device))
        known.push_back(text(kCooperativeMatrix, " ", matrix->m, "x", matrix->n, "x", matrix->k));
    return known;
}

}  // namespace plait::vulkan
