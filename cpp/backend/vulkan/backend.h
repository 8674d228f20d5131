// The Vulkan backend: one per context, on a device shared by all contexts of the process.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace plait::vulkan {

// Returns a backend for the n-th device. Throws BackendError if there is no such device or if it
// lacks a feature that the shaders need.
std::unique_ptr<Backend> make_backend(size_t index);

}  // namespace plait::vulkan
