// One opened device: its queue, its pipelines, and copies to and from its memory. Shared by every
// context of the process that runs on it; safe to use from several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/vulkan/vk.h"

namespace plait::vulkan {

// What every pipeline is pushed: where its arguments and its run's frame are. See frame.h.
struct Push {
    uint64_t args = 0;
    uint64_t frame = 0;
};

class Device {
public:
    // The n-th device, opened by the first who asks and kept open, as pipelines take long to make;
    // a lost one is replaced. BackendError where there is none or it lacks a feature.
    static std::shared_ptr<Device> open(size_t index);

    const std::string& name() const { return name_; }  // "vulkan:0"
    // Differs from that of the device which it replaces, whose memory is gone.
    int generation() const { return generation_; }
    vk::Device handle() const { return *device_; }
    vk::PipelineLayout layout() const { return *layout_; }
    uint32_t queue_family() const { return queue_family_; }
    const vk::PhysicalDeviceMemoryProperties& memory() const { return memory_; }

    // The pipeline of shaders/<shader>.comp with these specialization constants, from 0 on.
    vk::Pipeline pipeline(std::string_view shader, std::span<const uint32_t> constants);

    // Runs a recorded command buffer to its end.
    void run(vk::CommandBuffer commands, vk::Fence fence);
    // Records with `record` and runs that, once.
    template <typename Record>
    void run_once(Record record) {
        const std::lock_guard lock(once_mutex_);
        begin_once();
        record(*once_commands_);
        end_once();
    }

    // What Vulkan refuses while `body` runs becomes a BackendError that begins with `doing`.
    template <typename Body>
    decltype(auto) attempt(std::string_view doing, Body&& body) {
        try {
            return body();
        } catch (const vk::SystemError& error) {
            fail(doing, error);
        }
    }

private:
    Device(size_t index, int generation, vk::PhysicalDevice physical);
    void begin_once();
    void end_once();
    [[noreturn]] void fail(std::string_view doing, const vk::SystemError& error);

    std::string name_;
    int generation_;
    vk::PhysicalDeviceMemoryProperties memory_;
    uint32_t queue_family_ = 0;
    vk::UniqueDevice device_;
    vk::Queue queue_;
    std::mutex queue_mutex_;
    vk::UniquePipelineLayout layout_;
    std::mutex pipelines_mutex_;
    std::map<std::pair<std::string, std::vector<uint32_t>>, vk::UniquePipeline> pipelines_;
    std::mutex once_mutex_;
    vk::UniqueCommandPool once_pool_;
    vk::UniqueCommandBuffer once_commands_;
    vk::UniqueFence once_fence_;
    std::atomic<bool> lost_{false};
};

}  // namespace plait::vulkan
