// Device memory as the runtime sees it.
#pragma once

#include <memory>

#include "backend/vulkan/device.h"
#include "tensor/buffer.h"

namespace plait::vulkan {

class DeviceBuffer : public Buffer {
public:
    // Zeroed. BackendError naming the bytes.
    DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, Residence residence);

    uint64_t bytes() const override { return bytes_; }
    void write(uint64_t offset, std::span<const std::byte> source) override;
    void read(uint64_t offset, std::span<std::byte> target) const override;
    std::byte* host() override { return memory_.mapped(); }

    uint64_t address() const { return memory_.address(); }  // on the device
    vk::Buffer handle() const { return memory_.handle(); }

private:
    std::shared_ptr<Device> device_;
    uint64_t bytes_;
    Allocation memory_;
};

}  // namespace plait::vulkan
