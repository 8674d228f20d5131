#include "runtime/devices/backend_registry.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "backend/device_set.h"
#include "base/error.h"
#include "base/text.h"
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

struct Choice {
    const BackendKind* kind;
    size_t index;
};

// Parses "vulkan" or "vulkan:N"; nullopt for unknown names.
std::optional<Choice> find_device(std::string_view name) {
    const std::string_view kind_name = name.substr(0, name.find(':'));
    for (const BackendKind& kind : kinds()) {
        if (kind.name != kind_name) continue;
        if (name.size() == kind_name.size()) return Choice{&kind, 0};
        const std::string_view digits = name.substr(kind_name.size() + 1);
        const char* const last = digits.data() + digits.size();
        size_t index = 0;
        const auto [end, error] = std::from_chars(digits.data(), last, index);
        if (error == std::errc() && end == last) return Choice{&kind, index};
    }
    return std::nullopt;
}

std::optional<Choice> first_gpu() {
    for (const BackendKind& kind : kinds()) {
        const std::vector<DeviceInfo> devices = kind.devices();
        for (size_t i = 0; i < devices.size(); ++i)
            if (devices[i].is_gpu && devices[i].usable) return Choice{&kind, i};
    }
    return std::nullopt;
}

[[noreturn]] void throw_unknown_backend(const std::string& names) {
    std::string known;
    for (const BackendKind& kind : backend_kinds())
        known += text("\"", kind.name, "\", \"", kind.name, ":N\", ");
    throw InvalidArgument(text("backend: expected \"cpu\", ", known,
                               "several of these as in \"vulkan:0,vulkan:1\", or \"auto\", got \"",
                               names, "\""));
}

}  // namespace

const std::vector<BackendKind>& backend_kinds() { return kinds(); }

void register_backend(BackendKind kind) {
    std::erase_if(kinds(), [&](const BackendKind& known) { return known.name == kind.name; });
    kinds().push_back(std::move(kind));
}

std::vector<std::unique_ptr<Backend>> make_devices(const std::string& names,
                                                   const cpu::CpuOptions& options) {
    std::vector<Choice> choices;
    if (names == "auto") {
        if (const auto gpu = first_gpu()) choices.push_back(*gpu);
    } else if (names != "cpu") {
        for (size_t begin = 0; begin <= names.size();) {
            const size_t end = std::min(names.find(',', begin), names.size());
            const auto choice = find_device(std::string_view(names).substr(begin, end - begin));
            if (!choice) throw_unknown_backend(names);
            choices.push_back(*choice);
            begin = end + 1;
        }
    }
    if (choices.size() >= DeviceSet::kMaxDevices)
        throw InvalidArgument(text("backend: expected at most ", DeviceSet::kMaxDevices - 1,
                                   " devices besides the CPU, got ", choices.size()));
    std::vector<std::unique_ptr<Backend>> devices;
    for (const Choice& choice : choices) devices.push_back(choice.kind->make(choice.index));
    devices.push_back(std::make_unique<cpu::CpuBackend>(options));
    return devices;
}

}  // namespace plait
