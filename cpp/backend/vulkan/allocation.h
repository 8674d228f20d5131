// A Vulkan buffer with memory of its own, of which shaders know the address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

// Where the bytes are: on the device alone; where the host writes and the device reads; or where the
// device writes and the host reads. The latter two have a host address.
enum class Residence : uint8_t { device, upload, download };

class Allocation {
public:
    // The bytes are whatever they were. vk::SystemError where there are not enough.
    Allocation(vk::Device device, const vk::PhysicalDeviceMemoryProperties& memory, uint64_t bytes,
               Residence residence);

    vk::Buffer handle() const { return *buffer_; }
    uint64_t address() const { return address_; }  // on the device
    std::byte* mapped() const { return mapped_; }  // on the host, or null

private:
    vk::UniqueBuffer buffer_;
    vk::UniqueDeviceMemory memory_;
    std::byte* mapped_ = nullptr;
    uint64_t address_ = 0;
};

}  // namespace plait::vulkan
