#include "runtime/devices/make_devices.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#ifdef PLAIT_HAS_VULKAN
#include "backend/vulkan/backend.h"
#include "backend/vulkan/devices.h"
#endif

namespace plait {
namespace {

// Of "vulkan" or "vulkan:N"; nothing for other names.
std::optional<size_t> vulkan_index(std::string_view name) {
    constexpr std::string_view kName = "vulkan";
    if (name == kName) return 0;
    if (!name.starts_with("vulkan:")) return std::nullopt;
    const std::string_view digits = name.substr(kName.size() + 1);
    size_t index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return index;
}

#ifdef PLAIT_HAS_VULKAN
std::unique_ptr<Backend> make_vulkan(size_t index) { return vulkan::make_backend(index); }

std::optional<size_t> first_gpu() {
    const std::vector<vulkan::DeviceInfo> devices = vulkan::devices();
    for (size_t i = 0; i < devices.size(); ++i)
        if (devices[i].is_gpu && devices[i].usable) return i;
    return std::nullopt;
}
#else
std::unique_ptr<Backend> make_vulkan(size_t) {
    throw BackendError("backend \"vulkan\": this build has no Vulkan");
}

std::optional<size_t> first_gpu() { return std::nullopt; }
#endif

}  // namespace

std::vector<std::unique_ptr<Backend>> make_devices(const std::string& names,
                                                   const cpu::CpuOptions& options) {
    std::vector<size_t> gpus;
    if (names == "auto") {
        if (const std::optional<size_t> gpu = first_gpu()) gpus.push_back(*gpu);
    } else if (names != "cpu") {
        for (size_t begin = 0; begin <= names.size();) {
            const size_t end = std::min(names.find(',', begin), names.size());
            const auto gpu = vulkan_index(std::string_view(names).substr(begin, end - begin));
            if (!gpu)
                throw InvalidArgument(
                    text("backend: expected \"cpu\", \"vulkan\", \"vulkan:N\", several of these as "
                         "in \"vulkan:0,vulkan:1\", or \"auto\", got \"",
                         names, "\""));
            gpus.push_back(*gpu);
            begin = end + 1;
        }
    }
    if (gpus.size() >= kMostDevices)
        throw InvalidArgument(text("backend: expected at most ", kMostDevices - 1,
                                   " devices beside the CPU, got ", gpus.size()));
    std::vector<std::unique_ptr<Backend>> devices;
    for (const size_t gpu : gpus) devices.push_back(make_vulkan(gpu));
    devices.push_back(std::make_unique<cpu::CpuBackend>(options));
    return devices;
}

}  // namespace plait
