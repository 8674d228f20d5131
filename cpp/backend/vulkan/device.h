// An open device: its queue, its pipelines, and access to its memory. Shared by all contexts of the
// process that use the device. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "backend/vulkan/buffer.h"
#include "backend/vulkan/devices.h"
#include "backend/vulkan/pipelines.h"
#include "backend/vulkan/transfer.h"
#include "backend/vulkan/vk.h"

namespace plait::vulkan {

class Device {
public:
    // Returns the n-th device. It is opened on first use and stays open, because creating pipelines
    // is slow. A lost device is replaced by a new one. Throws BackendError if there is no such
    // device or if it lacks a required feature.
    static std::shared_ptr<Device> open(size_t index);

    const std::string& name() const { return name_; }  // "vulkan:0"
    // Number of lost devices that were replaced before this one was opened. Memory of one
    // generation does not exist in the next.
    int generation() const { return generation_; }
    vk::Device handle() const { return *device_; }
    uint32_t queue_family() const { return queue_family_; }
    const Limits& limits() const { return limits_; }
    Pipelines& pipelines() { return *pipelines_; }
    Transfer& transfer() { return *transfer_; }

    // Throws BackendError with the size if the allocation fails.
    Allocation allocate(uint64_t bytes, MemoryKind kind);

    // Submits a recorded command buffer and waits until it has completed. If the submission fails,
    // nothing has run. If the wait fails, the device is lost.
    void run(vk::CommandBuffer commands, vk::Fence fence);
    // Throws BackendError if the device is lost. No context on a lost device can be used again.
    void check() const;

    // Runs `body` and converts a Vulkan error to a BackendError that starts with `action`, for
    // example "cannot allocate 4096 bytes".
    template <typename Body>
    decltype(auto) attempt(std::string_view action, Body&& body) {
        try {
            return body();
        } catch (const vk::SystemError& error) {
            fail(action, error);
        }
    }

private:
    Device(size_t index, int generation, vk::PhysicalDevice physical);
    void create(vk::PhysicalDevice physical);
    [[noreturn]] void fail(std::string_view action, const vk::SystemError& error);

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
