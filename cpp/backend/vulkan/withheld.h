// What the user takes away from Vulkan, to see whether a shader is what is wrong: operations, which run on
// the CPU instead, and cooperative matrices, without which products are made as on other devices.
#pragma once

#include <functional>
#include <set>
#include <string>

namespace plait::vulkan {

// The names in PLAIT_VULKAN_WITHOUT: "attend,cooperative_matrix". BackendError for one that does not exist.
std::set<std::string, std::less<>> withheld();

}  // namespace plait::vulkan
