#include "backend/vulkan/instance.h"

#include <algorithm>
#include <exception>

VULKAN_HPP_DEFAULT_DISPATCH_LOADER_DYNAMIC_STORAGE

namespace plait::vulkan {
namespace {

int rank(const vk::PhysicalDevice& device) {
    switch (device.getProperties().deviceType) {
    case vk::PhysicalDeviceType::eDiscreteGpu: return 0;
    case vk::PhysicalDeviceType::eIntegratedGpu: return 1;
    case vk::PhysicalDeviceType::eVirtualGpu: return 2;
    default: return 3;
    }
}

}  // namespace

const Instance& Instance::get() {
    static const Instance* instance =
        new Instance;  // never destroyed: buffers may outlive static objects
    return *instance;
}

Instance::Instance() {
    try {
        loader_.emplace();
    } catch (const std::exception&) {
        problem_ = "this machine has no Vulkan loader (libvulkan.so.1)";
        return;
    }
    try {
        open();
        if (devices_.empty()) problem_ = "no driver offers a device with Vulkan 1.2";
    } catch (const vk::SystemError& error) {
        problem_ = std::string("the Vulkan loader reported an error: ") + error.what();
    }
}

void Instance::open() {
    VULKAN_HPP_DEFAULT_DISPATCHER.init(
        loader_->getProcAddress<PFN_vkGetInstanceProcAddr>("vkGetInstanceProcAddr"));
    const vk::ApplicationInfo application{.pApplicationName = "plait",
                                          .apiVersion = VK_API_VERSION_1_2};
    const vk::Instance instance = vk::createInstance({.pApplicationInfo = &application});
    VULKAN_HPP_DEFAULT_DISPATCHER.init(instance);
    devices_ = instance.enumeratePhysicalDevices();
    std::erase_if(devices_, [](const vk::PhysicalDevice& device) {
        return device.getProperties().apiVersion < VK_API_VERSION_1_2;
    });
    std::ranges::stable_sort(devices_, {}, rank);
}

}  // namespace plait::vulkan
