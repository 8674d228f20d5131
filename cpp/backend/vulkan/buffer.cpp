#include "backend/vulkan/buffer.h"

#include <cstring>

#include "base/error.h"

namespace plait::vulkan {

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, uint64_t bytes, Residence residence)
    : device_(std::move(device)), bytes_(bytes), memory_(device_->allocate(bytes, residence)) {
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
