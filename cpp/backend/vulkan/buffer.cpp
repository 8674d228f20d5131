#include "backend/vulkan/buffer.h"

#include <array>
#include <cstring>
#include <optional>

#include "backend/vulkan/device.h"
#include "base/checked.h"
#include "base/error.h"

namespace plait::vulkan {
namespace {

using Flag = vk::MemoryPropertyFlagBits;

// Shaders unpack whole groups of elements, so they may read past the end of the last row.
constexpr uint64_t kSlackBytes = 64;

std::optional<uint32_t> find_memory_type(const vk::PhysicalDeviceMemoryProperties& memory,
                                         uint32_t allowed, vk::MemoryPropertyFlags required) {
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
        if ((allowed >> i & 1) != 0 && (memory.memoryTypes[i].propertyFlags & required) == required)
            return i;
    return std::nullopt;
}

// Returns the preferred memory type, or the fallback that the specification guarantees.
uint32_t choose_type(const vk::PhysicalDeviceMemoryProperties& memory, uint32_t allowed,
                     MemoryKind kind) {
    const vk::MemoryPropertyFlags shared = Flag::eHostVisible | Flag::eHostCoherent;
    std::array<vk::MemoryPropertyFlags, 2> choices{Flag::eDeviceLocal, {}};
    if (kind == MemoryKind::upload) choices = {shared | Flag::eDeviceLocal, shared};
    if (kind == MemoryKind::download) choices = {shared | Flag::eHostCached, shared};
    for (const vk::MemoryPropertyFlags required : choices)
        if (const auto type = find_memory_type(memory, allowed, required)) return *type;
    throw BackendError("vulkan: the device offers no memory for buffers");
}

}  // namespace

Allocation::Allocation(vk::Device device, const vk::PhysicalDeviceMemoryProperties& memory,
                       uint64_t bytes, MemoryKind kind) {
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
         .memoryTypeIndex = choose_type(memory, needs.memoryTypeBits, kind)});
    device.bindBufferMemory(*buffer_, *memory_, 0);
    address_ = device.getBufferAddress({.buffer = *buffer_});
    if (kind != MemoryKind::device)
        mapped_ = static_cast<std::byte*>(device.mapMemory(*memory_, 0, VK_WHOLE_SIZE));
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, MemoryKind kind)
    : device_(std::move(device)), bytes_(bytes), memory_(device_->allocate(bytes, kind)) {
    if (std::byte* mapped = host())
        std::memset(mapped, 0, bytes_);
    else
        device_->transfer().run_once([&](vk::CommandBuffer commands) {
            commands.fillBuffer(handle(), 0, VK_WHOLE_SIZE, 0);
        });
}

void DeviceBuffer::write(uint64_t offset, std::span<const std::byte> source) {
    PLAIT_CHECK(offset <= bytes_ && source.size() <= bytes_ - offset);
    if (source.empty()) return;
    if (std::byte* mapped = host())
        std::memcpy(mapped + offset, source.data(), source.size());
    else
        device_->transfer().write(handle(), offset, source);
}

void DeviceBuffer::read(uint64_t offset, std::span<std::byte> target) const {
    PLAIT_CHECK(offset <= bytes_ && target.size() <= bytes_ - offset);
    if (target.empty()) return;
    if (const std::byte* mapped = memory_.mapped())
        std::memcpy(target.data(), mapped + offset, target.size());
    else
        device_->transfer().read(handle(), offset, target);
}

}  // namespace plait::vulkan
