// Buffers in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/vulkan/vk.h"
#include "tensor/buffer.h"

namespace plait::vulkan {

class Device;

// device: on the device only. upload: the host writes, the device reads. download: the device
// writes, the host reads. Upload and download memory is mapped into the host's address space.
enum class MemoryKind : uint8_t { device, upload, download };

// A Vulkan buffer with its own memory, addressable by shaders.
class Allocation {
public:
    // The contents are undefined. Throws vk::SystemError if there is not enough memory.
    Allocation(vk::Device device, const vk::PhysicalDeviceMemoryProperties& memory, uint64_t bytes,
               MemoryKind kind);

    vk::Buffer handle() const { return *buffer_; }
    uint64_t address() const { return address_; }  // on the device
    std::byte* mapped() const { return mapped_; }  // on the host; null for MemoryKind::device

private:
    vk::UniqueBuffer buffer_;
    vk::UniqueDeviceMemory memory_;
    std::byte* mapped_ = nullptr;
    uint64_t address_ = 0;
};

// An allocation as the runtime uses it.
class DeviceBuffer : public Buffer {
public:
    // Filled with zeros. Throws BackendError with the size if the allocation fails.
    DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, MemoryKind kind);

    uint64_t bytes() const override { return bytes_; }
    void write(uint64_t offset, std::span<const std::byte> source) override;
    void read(uint64_t offset, std::span<std::byte> target) const override;
    std::byte* host() override { return memory_.mapped(); }
    uint64_t address() const override { return memory_.address(); }

    vk::Buffer handle() const { return memory_.handle(); }

private:
    std::shared_ptr<Device> device_;
    uint64_t bytes_;
    Allocation memory_;
};

}  // namespace plait::vulkan
