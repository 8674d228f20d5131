// vulkan.hpp as this folder uses it: every function is looked up at run time, nothing is linked.
// Heavy, so only the files that call Vulkan include it.
#pragma once

#define VULKAN_HPP_DISPATCH_LOADER_DYNAMIC 1
#define VULKAN_HPP_NO_STRUCT_CONSTRUCTORS
#include <vulkan/vulkan.hpp>

// Headers from 1.3.301 on have the loader in `detail`.
namespace vk::detail {}
namespace plait::vulkan::either {
using namespace ::vk;
using namespace ::vk::detail;
using Loader = DynamicLoader;
}  // namespace plait::vulkan::either
