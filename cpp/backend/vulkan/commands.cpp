#include "backend/vulkan/commands.h"

namespace plait::vulkan {

Commands::Commands(std::shared_ptr<Device> device)
    : device_(std::move(device)), integrity_(std::make_shared<Integrity>(device_->name())) {
    device_->attempt("cannot make a command pool", [&] {
        pool_ = device_->handle().createCommandPoolUnique(
            {.queueFamilyIndex = device_->queue_family()});
        fence_ = device_->handle().createFenceUnique({});
    });
}

vk::UniqueCommandBuffer Commands::make() {
    return device_->attempt("cannot make a command buffer", [&] {
        return std::move(device_->handle().allocateCommandBuffersUnique(
            {.commandPool = *pool_, .commandBufferCount = 1})[0]);
    });
}

void Commands::run(vk::CommandBuffer commands, bool first_time) {
    counts_.recorded += first_time;
    ++counts_.submitted;
    device_->run(commands, *fence_);
}

void Commands::reserve_output(size_t index, uint64_t bytes) {
    if (outputs_[index] && outputs_[index]->bytes() >= bytes) return;
    outputs_[index] = std::make_unique<DeviceBuffer>(device_, bytes, Residence::download);
}

}  // namespace plait::vulkan
