#include "runtime/devices/backend_registry.h"

#include <algorithm>

#include "base/error.h"
#ifdef PLAIT_HAS_VULKAN
#include "backend/vulkan/backend.h"
#include "backend/vulkan/devices.h"
#endif

namespace plait {
namespace {

#ifdef PLAIT_HAS_VULKAN
std::vector<DeviceInfo> vulkan_devices() {
    std::vector<DeviceInfo> all;
    for (vulkan::DeviceInfo& device : vulkan::devices())
        all.push_back({std::move(device.name), std::move(device.description), device.memory,
                       device.is_gpu, device.usable, std::move(device.features),
                       std::move(device.limits)});
    return all;
}
std::unique_ptr<Backend> make_vulkan(size_t index) { return vulkan::make_backend(index); }
#else
std::vector<DeviceInfo> vulkan_devices() { return {}; }
std::unique_ptr<Backend> make_vulkan(size_t) {
    throw BackendError("backend \"vulkan\": this build has no Vulkan support");
}
#endif

std::vector<BackendKind>& kinds() {
    static std::vector<BackendKind> all{
        {"vulkan", vulkan_devices, make_vulkan},
    };
    return all;
}

}  // namespace

const std::vector<BackendKind>& backend_kinds() { return kinds(); }

void register_backend(BackendKind kind) {
    std::erase_if(kinds(), [&](const BackendKind& known) { return known.name == kind.name; });
    kinds().push_back(std::move(kind));
}

}  // namespace plait
