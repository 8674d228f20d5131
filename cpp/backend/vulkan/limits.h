// What of a device the shaders are fitted to.
#pragma once

#include <cstdint>
#include <optional>

namespace plait::vulkan {

// The extension whose words the shader of cooperative matrices uses.
enum class Dialect : uint8_t { khr, nv };

// A subgroup multiplies m by k elements with k by n at once.
struct CooperativeMatrix {
    Dialect dialect = Dialect::khr;
    uint32_t m = 0, n = 0, k = 0;
};

struct Limits {
    uint32_t subgroup = 32;         // invocations that run together
    uint32_t workgroup = 128;       // invocations of a workgroup, at most
    uint32_t shared_bytes = 16384;  // that they share, at most
    std::optional<CooperativeMatrix> matrix = std::nullopt;
};

}  // namespace plait::vulkan
