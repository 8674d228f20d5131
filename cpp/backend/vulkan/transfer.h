// One-time commands, and copies between the host and device memory through staging buffers.
// Everything is allocated in advance, so a transfer can only fail if the device does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "backend/vulkan/buffer.h"

namespace plait::vulkan {

class Device;

// Thread-safe. Owned by its device.
class Transfer {
public:
    explicit Transfer(Device& device);

    // Records commands with `record`, submits them and waits until they have completed.
    template <typename Record>
    void run_once(Record record) {
        const std::lock_guard lock(mutex_);
        run_locked(record);
    }
    void write(vk::Buffer target, uint64_t offset, std::span<const std::byte> source);
    void read(vk::Buffer source, uint64_t offset, std::span<std::byte> target);

private:
    template <typename Record>
    void run_locked(Record record) {
        begin();
        record(*commands_);
        end();
    }
    void begin();
    void end();

    Device& device_;
    std::mutex mutex_;
    vk::UniqueCommandPool pool_;
    vk::UniqueCommandBuffer commands_;
    vk::UniqueFence fence_;
    Allocation upload_, download_;  // staging buffers
};

}  // namespace plait::vulkan
