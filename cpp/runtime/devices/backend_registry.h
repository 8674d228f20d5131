// The backends besides the CPU. To add one, add an entry to backend_registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace plait {

// Description of a device of this machine.
struct DeviceInfo {
    std::string name;  // "vulkan:0"
    std::string description;
    uint64_t memory = 0;  // bytes of its largest device-local heap
    bool is_gpu = false;  // false for drivers that compute on the CPU
    bool usable = false;  // has every feature that the backend needs
    std::vector<std::string> features;
    std::vector<std::pair<std::string, uint64_t>> limits;
};

struct BackendKind {
    std::string name;  // Context(backend=...) takes "name" and "name:N"
    std::function<std::vector<DeviceInfo>()> devices;
    // Creates the backend of the device with this index. Throws BackendError if there is none.
    std::function<std::unique_ptr<Backend>(size_t index)> make;
};

const std::vector<BackendKind>& backend_kinds();
// Adds a kind, or replaces the kind of the same name. Not safe while another thread creates a context.
void register_backend(BackendKind kind);

}  // namespace plait
