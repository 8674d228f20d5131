#include "backend/vulkan/buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

using Flag = vk::MemoryPropertyFlagBits;

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;
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

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, Residence residence)
    : device_(std::move(device)), bytes_(bytes) {
    if (bytes > UINT64_MAX / 2)
        throw BackendError(text(device_->name(), ": cannot allocate ", bytes, " bytes"));
    device_->attempt(text("cannot allocate ", bytes, " bytes"), [&] { make(residence); });
    clear();
}

void DeviceBuffer::make(Residence residence) {
    const vk::Device device = device_->handle();
    using Usage = vk::BufferUsageFlagBits;
    buffer_ = device.createBufferUnique(
        {.size = align_up(bytes_, 16) + kSlackBytes,
         .usage = Usage::eStorageBuffer | Usage::eShaderDeviceAddress | Usage::eIndirectBuffer |
                  Usage::eTransferSrc | Usage::eTransferDst});
    const vk::MemoryRequirements needs = device.getBufferMemoryRequirements(*buffer_);
    const vk::MemoryAllocateFlagsInfo addressed{.flags =
                                                    vk::MemoryAllocateFlagBits::eDeviceAddress};
    memory_ = device.allocateMemoryUnique(
        {.pNext = &addressed,
         .allocationSize = needs.size,
         .memoryTypeIndex = choose_type(device_->memory(), needs.memoryTypeBits, residence)});
    device.bindBufferMemory(*buffer_, *memory_, 0);
    address_ = device.getBufferAddress({.buffer = *buffer_});
    if (residence != Residence::device)
        mapped_ = static_cast<std::byte*>(device.mapMemory(*memory_, 0, VK_WHOLE_SIZE));
}

void DeviceBuffer::clear() {
    if (mapped_ != nullptr)
        std::memset(mapped_, 0, bytes_);
    else
        device_->run_once([&](vk::CommandBuffer commands) {
            commands.fillBuffer(*buffer_, 0, VK_WHOLE_SIZE, 0);
        });
}

void DeviceBuffer::write(uint64_t offset, std::span<const std::byte> source) {
    PLAIT_CHECK(offset <= bytes_ && source.size() <= bytes_ - offset);
    if (source.empty()) return;
    if (mapped_ != nullptr) {
        std::memcpy(mapped_ + offset, source.data(), source.size());
        return;
    }
    DeviceBuffer staging(device_, std::min<uint64_t>(source.size(), kStagingBytes),
                         Residence::upload);
    for (uint64_t done = 0; done < source.size(); done += staging.bytes()) {
        const uint64_t n = std::min<uint64_t>(staging.bytes(), source.size() - done);
        std::memcpy(staging.mapped_, source.data() + done, n);
        device_->run_once([&](vk::CommandBuffer commands) {
            commands.copyBuffer(*staging.buffer_, *buffer_,
                                vk::BufferCopy{.dstOffset = offset + done, .size = n});
        });
    }
}

void DeviceBuffer::read(uint64_t offset, std::span<std::byte> target) const {
    PLAIT_CHECK(offset <= bytes_ && target.size() <= bytes_ - offset);
    if (target.empty()) return;
    if (mapped_ != nullptr) {
        std::memcpy(target.data(), mapped_ + offset, target.size());
        return;
    }
    DeviceBuffer staging(device_, std::min<uint64_t>(target.size(), kStagingBytes),
                         Residence::download);
    for (uint64_t done = 0; done < target.size(); done += staging.bytes()) {
        const uint64_t n = std::min<uint64_t>(staging.bytes(), target.size() - done);
        device_->run_once([&](vk::CommandBuffer commands) {
            commands.copyBuffer(*buffer_, *staging.buffer_,
                                vk::BufferCopy{.srcOffset = offset + done, .size = n});
            const vk::MemoryBarrier to_host{.srcAccessMask = vk::AccessFlagBits::eTransferWrite,
                                            .dstAccessMask = vk::AccessFlagBits::eHostRead};
            commands.pipelineBarrier(vk::PipelineStageFlagBits::eTransfer,
                                     vk::PipelineStageFlagBits::eHost, {}, to_host, {}, {});
        });
        std::memcpy(target.data() + done, staging.mapped_, n);
    }
}

}  // namespace plait::vulkan
