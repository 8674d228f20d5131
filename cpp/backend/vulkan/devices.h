// The Vulkan devices of this machine: descriptions, free memory, and the limits that kernels are
// fitted to. Does not include the Vulkan headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plait::vulkan {

struct DeviceInfo {
    std::string name;  // "vulkan:0"
    std::string description;
    uint64_t memory = 0;  // size of the largest device-local heap, in bytes
    bool is_gpu = false;  // false for drivers that compute on the CPU
    bool usable = false;  // has every feature that the shaders require
    std::vector<std::string> features;
    std::vector<std::pair<std::string, uint64_t>> limits;
};

// Describes all devices. Empty if there is no Vulkan loader or no driver.
std::vector<DeviceInfo> devices();

// Returns how many bytes this process can still allocate in the largest device-local heap of the
// n-th device: the budget reported by VK_EXT_memory_budget, or the size of the heap if the driver
// does not report one. At most max_memory_bytes().
uint64_t free_memory(size_t index);

// The extensions for cooperative matrices that this build has shaders for: "KHR", "NV".
std::vector<std::string> cooperative_matrices();

// The Vulkan extension through which a device offers cooperative matrices.
enum class MatrixExtension : uint8_t { khr, nv };

// A subgroup multiplies an m by k matrix with a k by n matrix in one operation.
struct CooperativeMatrix {
    MatrixExtension extension = MatrixExtension::khr;
    uint32_t m = 0, n = 0, k = 0;
};

struct Limits {
    uint32_t subgroup = 32;         // invocations per subgroup
    uint32_t workgroup = 128;       // max invocations per workgroup
    uint32_t shared_bytes = 16384;  // max shared memory per workgroup
    std::optional<CooperativeMatrix> matrix = std::nullopt;
};

}  // namespace plait::vulkan
