#include "runtime/make_backend.h"

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

std::unique_ptr<Backend> make_backend(const std::string& name, const cpu::CpuOptions& options) {
    const bool choose = name == "auto";
    const std::optional<size_t> gpu = choose ? first_gpu() : vulkan_index(name);
    if (gpu) return make_vulkan(*gpu);
    if (name == "cpu" || choose) return std::make_unique<cpu::CpuBackend>(options);
    throw InvalidArgument(text(
        "backend: expected \"cpu\", \"vulkan\", \"vulkan:N\" or \"auto\", got \"", name, "\""));
}

}  // namespace plait
