// The compiled shaders that this build carries; see shaders/manifest.cmake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plait::vulkan {

// Of shaders/<name>.comp. InternalError where there is none.
std::span<const uint32_t> spirv(std::string_view name);

}  // namespace plait::vulkan
