// The device that a context asks for by name.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/backend.h"

namespace plait {

// "cpu", "vulkan" (the first device), "vulkan:N", or "auto": the first GPU that has what the shaders
// need, otherwise the CPU. InvalidArgument for another name; BackendError where there is no such
// device.
std::unique_ptr<Backend> make_backend(const std::string& name, const cpu::CpuOptions& options);

}  // namespace plait
