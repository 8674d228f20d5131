// Environment variables that configure the Vulkan backend. Documented in docs/environment.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace plait::vulkan {

// PLAIT_VULKAN_WITHOUT: comma-separated names of operations to run on the CPU, and of
// kCooperativeMatrix. Useful to find out whether a shader gives wrong results. Throws BackendError
// for unknown names.
std::set<std::string, std::less<>> disabled_features();

// PLAIT_VULKAN_MEMORY: max device memory to use, in bytes (MiB in the variable). UINT64_MAX if it
// is not set. Throws BackendError if it is not a number.
uint64_t max_memory_bytes();

// PLAIT_VULKAN_CACHE: the folder of the pipeline cache. By default `plait` in XDG_CACHE_HOME or
// ~/.cache. Empty if the cache is off or no folder is known.
std::filesystem::path pipeline_cache_folder();

}  // namespace plait::vulkan
