// Operations that the user takes away from Vulkan, to see whether a shader is what is wrong: they
// run on the CPU instead.
#pragma once

#include <functional>
#include <set>
#include <string>

namespace plait::vulkan {

// Those of PLAIT_VULKAN_WITHOUT: "attend,rms_norm". BackendError for one that does not exist.
std::set<std::string, std::less<>> withheld_operations();

}  // namespace plait::vulkan
