#include "backend/vulkan/allocation.h"

#include <array>
#include <optional>

#include "base/checked.h"
#include "base/error.h"

namespace plait::vulkan {
namespace {

using Flag = vk::MemoryPropertyFlagBits;

// Shaders unpack whole groups of elements, so the last one of a row may begin within it alone.
constexpr uint64_t kSlackBytes = 64;

std::optional<uint32_t> memory_type(const vk::PhysicalDeviceMemoryProperties& memory,
                                    uint32_t allowed, vk::MemoryPropertyFlags wanted) {
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
        if ((allowed >> i & 1) != 0 && (memory.memoryTypes[i].propertyFlags & wanted) == wanted)
            return i;
    return std::nullopt;
}

// The best type there is: the specification promises the second.
uint32_t choose_type(const vk::PhysicalDeviceMemoryProperties& memory, uint32_t allowed,
                     Residence residence) {
    const vk::MemoryPropertyFlags shared = Flag::eHostVisible | Flag::eHostCoherent;
    std::array<vk::MemoryPropertyFlags, 2> choices{Flag::eDeviceLocal, {}};
    if (residence == Residence::upload) choices = {shared | Flag::eDeviceLocal, shared};
    if (residence == Residence::download) choices = {shared | Flag::eHostCached, shared};
    for (const vk::MemoryPropertyFlags wanted : choices)
        if (const auto type = memory_type(memory, allowed, wanted)) return *type;
    throw BackendError("vulkan: the device offers no memory for buffers");
}

}  // namespace

Allocation::Allocation(vk::Device device, const vk::PhysicalDeviceMemoryProperties& memory,
                       uint64_t bytes, Residence residence) {
    using Usage = vk::BufferUsageFlagBits;
    buffer_ = device.createBufferUnique(
        {.size = align_up(bytes, 16) + kSlackBytes,
         .usage = Usage::eStorageBuffer | Usage::eShaderDeviceAddress | Usage::eIndirectBuffer |
                  Usage::eTransferSrc | Usage::eTransferDst});
    const vk::MemoryRequirements needs = device.getBufferMemoryRequirements(*buffer_);
    const vk::MemoryAllocateFlagsInfo addressed{.flags =
                                                    vk::MemoryAllocateFlagBits::eDeviceAddress};
    memory_ = device.allocateMemoryUnique(
        {.pNext = &addressed,
         .allocationSize = needs.size,
         .memoryTypeIndex = choose_type(memory, needs.memoryTypeBits, residence)});
    device.bindBufferMemory(*buffer_, *memory_, 0);
    address_ = device.getBufferAddress({.buffer = *buffer_});
    if (residence != Residence::device)
        mapped_ = static_cast<std::byte*>(device.mapMemory(*memory_, 0, VK_WHOLE_SIZE));
}

}  // namespace plait::vulkan
