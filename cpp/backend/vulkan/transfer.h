// What the host does with a device's own memory: commands that run once, and copies through memory
// that both see. All that it needs is there from the start, so that only the device can fail it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "backend/vulkan/allocation.h"

namespace plait::vulkan {

class Device;

// Safe to use from several threads; belongs to its device.
class Transfer {
public:
    explicit Transfer(Device& device);

    // Records with `record` and runs that to its end.
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
    Allocation up_, down_;
};

}  // namespace plait::vulkan
