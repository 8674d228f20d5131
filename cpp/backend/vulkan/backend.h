// The Vulkan backend: one per context, on a device that contexts share.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace plait::vulkan {

// The backend of the n-th device. BackendError where there is no such device, or where it lacks a
// feature that the shaders need.
std::unique_ptr<Backend> make_backend(size_t index);

}  // namespace plait::vulkan
