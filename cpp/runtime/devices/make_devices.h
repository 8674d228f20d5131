// Creates the devices that a context names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/backend.h"

namespace plait {

// `names`: "cpu"; the name of a registered backend for its first device, or "name:N"; several of
// these as in "vulkan:0,vulkan:1"; or "auto", the first usable GPU, if there is one. The CPU is always
// part of the result and comes last. Throws InvalidArgument for any other name, BackendError if there is
// no such device.
std::vector<std::unique_ptr<Backend>> make_devices(const std::string& names,
                                                   const cpu::CpuOptions& options);

}  // namespace plait
