// Device memory as the runtime sees it.
#pragma once

#include <memory>

#include "backend/vulkan/device.h"
#include "tensor/buffer.h"

namespace plait::vulkan {

// Where the bytes are: on the device alone; where the host writes and the device reads; or where the
// device writes and the host reads. The latter two have a host address.
enum class Residence : uint8_t { device, upload, download };

class DeviceBuffer final : public Buffer {
public:
    // Zeroed. BackendError naming the bytes.
    DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, Residence residence);

    uint64_t bytes() const override { return bytes_; }
    void write(uint64_t offset, std::span<const std::byte> source) override;
    void read(uint64_t offset, std::span<std::byte> target) const override;
    std::byte* host() override { return mapped_; }

    uint64_t address() const { return address_; }  // on the device
    vk::Buffer handle() const { return *buffer_; }

private:
    void make(Residence residence);
    void clear();

    std::shared_ptr<Device> device_;
    uint64_t bytes_;
    vk::UniqueBuffer buffer_;
    vk::UniqueDeviceMemory memory_;
    std::byte* mapped_ = nullptr;
    uint64_t address_ = 0;
};

}  // namespace plait::vulkan
