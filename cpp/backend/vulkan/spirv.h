// The compiled shaders, embedded in the library; listed in shaders/manifest.cmake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plait::vulkan {

// Returns the SPIR-V of shaders/<name>.comp. Throws InternalError if there is no such shader.
std::span<const uint32_t> spirv(std::string_view name);

}  // namespace plait::vulkan
