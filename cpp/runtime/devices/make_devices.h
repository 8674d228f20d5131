// The devices that a context asks for by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/backend.h"

namespace plait {

// "cpu", "vulkan" (the first device), "vulkan:N", several as in "vulkan:0,vulkan:1", or "auto": the
// first GPU that has what the shaders need, if there is one. The CPU is always there and comes last.
// InvalidArgument for another name; BackendError where there is no such device.
std::vector<std::unique_ptr<Backend>> make_devices(const std::string& names,
                                                   const cpu::CpuOptions& options);

}  // namespace plait
