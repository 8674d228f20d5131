// The kinds of devices besides the CPU that a context can run on. A new backend is one entry in
// backend_registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace plait {

// A device of this machine, described for people and for choosing one.
struct DeviceInfo {
    std::string name;  // "vulkan:0"
    std::string description;
    uint64_t memory = 0;  // bytes of its largest own heap
    bool is_gpu = false;  // not a driver that computes on the processor
    bool usable = false;  // has every feature that the backend needs
    std::vector<std::string> features;
    std::vector<std::pair<std::string, uint64_t>> limits;
};

struct BackendKind {
    std::string name;  // Context(backend=...) takes "name" and "name:N"
    std::function<std::vector<DeviceInfo>()> devices;
    // Makes the backend of the N-th device. BackendError if there is no such device.
    std::function<std::unique_ptr<Backend>(size_t index)> make;
};

const std::vector<BackendKind>& backend_kinds();
// Adds a kind, or replaces the one of that name. Not safe while another thread makes a context.
void register_backend(BackendKind kind);

}  // namespace plait
