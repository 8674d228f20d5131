// Device limits that kernels are fitted to. Does not include the Vulkan headers.
#pragma once

#include <cstdint>
#include <optional>

namespace plait::vulkan {

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
