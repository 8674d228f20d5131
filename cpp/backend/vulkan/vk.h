// vulkan.hpp, configured to look up every function at run time, so that nothing is linked.
// It compiles slowly; include it only in files that call Vulkan.
#pragma once

#define VULKAN_HPP_DISPATCH_LOADER_DYNAMIC 1
#define VULKAN_HPP_NO_STRUCT_CONSTRUCTORS
#include <vulkan/vulkan.hpp>

// The loader moved to namespace `detail` in version 1.3.301 of the headers.
namespace vk::detail {}
namespace plait::vulkan::either {
using namespace ::vk;
using namespace ::vk::detail;
using Loader = DynamicLoader;
}  // namespace plait::vulkan::either
