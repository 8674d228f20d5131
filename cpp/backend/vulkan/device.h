// One opened device: its queue, its pipelines, and the way to its memory. Shared by every context of
// the process that runs on it; safe to use from several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "backend/vulkan/allocation.h"
#include "backend/vulkan/limits.h"
#include "backend/vulkan/pipelines.h"
#include "backend/vulkan/transfer.h"
#include "backend/vulkan/vk.h"

namespace plait::vulkan {

class Device {
public:
    // The n-th device, opened by the first who asks and kept open, as pipelines take long to make;
    // a lost one is replaced. BackendError where there is none or it lacks a feature.
    static std::shared_ptr<Device> open(size_t index);

    const std::string& name() const { return name_; }  // "vulkan:0"
    // Differs from that of the device which it replaces, whose memory is gone.
    int generation() const { return generation_; }
    vk::Device handle() const { return *device_; }
    uint32_t queue_family() const { return queue_family_; }
    const Limits& limits() const { return limits_; }
    Pipelines& pipelines() { return *pipelines_; }
    Transfer& transfer() { return *transfer_; }

    // BackendError naming the bytes.
    Allocation allocate(uint64_t bytes, Residence residence);

    // Runs a recorded command buffer to its end. Where the device does not take it nothing has
    // happened; where it does not end the device is lost.
    void run(vk::CommandBuffer commands, vk::Fence fence);
    // BackendError once the device is lost, which is the end of every context on it.
    void check() const;

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
    void make(vk::PhysicalDevice physical);
    [[noreturn]] void fail(std::string_view doing, const vk::SystemError& error);

    std::string name_;
    int generation_;
    vk::PhysicalDeviceMemoryProperties memory_;
    Limits limits_;
    uint32_t queue_family_ = 0;
    vk::UniqueDevice device_;
    vk::Queue queue_;
    std::mutex queue_mutex_;
    std::atomic<bool> lost_{false};
    std::optional<Pipelines> pipelines_;
    std::optional<Transfer> transfer_;
};

}  // namespace plait::vulkan
