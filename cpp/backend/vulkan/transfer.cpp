#include "backend/vulkan/transfer.h"

#include <algorithm>
#include <cstring>

#include "backend/vulkan/device.h"

namespace plait::vulkan {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;

}  // namespace

Transfer::Transfer(Device& device)
    : device_(device),
      upload_(device.allocate(kStagingBytes, MemoryKind::upload)),
      download_(device.allocate(kStagingBytes, MemoryKind::download)) {
    device_.attempt("cannot allocate a command buffer", [&] {
        const vk::Device handle = device_.handle();
        pool_ = handle.createCommandPoolUnique(
            {.flags = vk::CommandPoolCreateFlagBits::eResetCommandBuffer,
             .queueFamilyIndex = device_.queue_family()});
        commands_ = std::move(handle.allocateCommandBuffersUnique(
            {.commandPool = *pool_, .commandBufferCount = 1})[0]);
        fence_ = handle.createFenceUnique({});
    });
}

void Transfer::begin() {
    device_.check();
    device_.attempt("cannot record commands", [&] {
        commands_->begin({.flags = vk::CommandBufferUsageFlagBits::eOneTimeSubmit});
    });
}

void Transfer::end() {
    device_.attempt("cannot record commands", [&] { commands_->end(); });
    device_.run(*commands_, *fence_);
}

void Transfer::write(vk::Buffer target, uint64_t offset, std::span<const std::byte> source) {
    const std::lock_guard lock(mutex_);
    for (uint64_t done = 0; done < source.size(); done += kStagingBytes) {
        const uint64_t n = std::min<uint64_t>(kStagingBytes, source.size() - done);
        std::memcpy(upload_.mapped(), source.data() + done, n);
        run_locked([&](vk::CommandBuffer commands) {
            commands.copyBuffer(upload_.handle(), target,
                                vk::BufferCopy{.dstOffset = offset + done, .size = n});
        });
    }
}

void Transfer::read(vk::Buffer source, uint64_t offset, std::span<std::byte> target) {
    const std::lock_guard lock(mutex_);
    for (uint64_t done = 0; done < target.size(); done += kStagingBytes) {
        const uint64_t n = std::min<uint64_t>(kStagingBytes, target.size() - done);
        run_locked([&](vk::CommandBuffer commands) {
            commands.copyBuffer(source, download_.handle(),
                                vk::BufferCopy{.srcOffset = offset + done, .size = n});
            const vk::MemoryBarrier to_host{.srcAccessMask = vk::AccessFlagBits::eTransferWrite,
                                            .dstAccessMask = vk::AccessFlagBits::eHostRead};
            commands.pipelineBarrier(vk::PipelineStageFlagBits::eTransfer,
                                     vk::PipelineStageFlagBits::eHost, {}, to_host, {}, {});
        });
        std::memcpy(target.data() + done, download_.mapped(), n);
    }
}

}  // namespace plait::vulkan
