// What of a device the shaders are fitted to.
#pragma once

#include <cstdint>

namespace plait::vulkan {

struct Limits {
    uint32_t subgroup = 32;         // invocations that run together
    uint32_t workgroup = 128;       // invocations of a workgroup, at most
    uint32_t shared_bytes = 16384;  // that they share, at most
};

}  // namespace plait::vulkan
