#include "backend/vulkan/commands.h"

namespace plait::vulkan {

Commands::Commands(std::shared_ptr<Device> device) : device_(std::move(device)) {
    device_->attempt("cannot make a command pool", [&] {
        pool_ = device_->handle().createCommandPoolUnique(
            {.queueFamilyIndex = device_->queue_family()});
        fence_ = device_->handle().createFenceUnique({});
    });
}

vk::UniqueCommandBuffer Commands::make() {
    ++counts_.recorded;
    return device_->attempt("cannot make a command buffer", [&] {
        return std::move(device_->handle().allocateCommandBuffersUnique(
            {.commandPool = *pool_, .commandBufferCount = 1})[0]);
    });
}

void Commands::run(vk::CommandBuffer commands) {
    ++counts_.submitted;
    device_->run(commands, *fence_);
}

void Commands::reserve_output(size_t index, uint64_t bytes) {
    if (outputs_[index] && outputs_[index]->bytes() >= bytes) return;
    outputs_[index] = std::make_unique<DeviceBuffer>(device_, bytes, Residence::download);
}

}  // namespace plait::vulkan
