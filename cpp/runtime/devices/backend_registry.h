// The devices that a context computes on. To add a backend, add an entry to backend_registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/backend.h"

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

// Returns the registered kinds; the CPU is not one of them.
const std::vector<BackendKind>& backend_kinds();
// Adds a kind, or replaces the kind of the same name. Not safe while another thread creates a
// context.
void register_backend(BackendKind kind);

// `names`: "cpu"; the name of a registered backend for its first device, or "name:N"; several of
// these as in "vulkan:0,vulkan:1"; or "auto", the first usable GPU, if there is one. The CPU is
// always part of the result and comes last. Throws InvalidArgument for any other name, BackendError
// if there is no such device.
std::vector<std::unique_ptr<Backend>> make_devices(const std::string& names,
                                                   const cpu::CpuOptions& options);

}  // namespace plait
