// What the executables of one context share: where command buffers come from, what tells that one
// has ended, and the host memory that results are written to.
#pragma once

#include <array>
#include <memory>

#include "backend/backend.h"
#include "backend/integrity.h"
#include "backend/vulkan/buffer.h"

namespace plait::vulkan {

class Commands {
public:
    explicit Commands(std::shared_ptr<Device> device);

    const std::shared_ptr<Device>& device() const { return device_; }
    const std::shared_ptr<Integrity>& integrity() const { return integrity_; }
    vk::UniqueCommandBuffer make();  // ready to be recorded
    // Runs that to its end. What is recorded counts when it runs for the first time.
    void run(vk::CommandBuffer commands, bool first_time);
    CommandCounts counts() const { return counts_; }

    // Makes the memory of an output at least that large. Not while a run is under way.
    void reserve_output(size_t index, uint64_t bytes);
    DeviceBuffer* output(size_t index) const { return outputs_[index].get(); }

private:
    std::shared_ptr<Device> device_;
    std::shared_ptr<Integrity> integrity_;
    vk::UniqueCommandPool pool_;
    vk::UniqueFence fence_;
    std::array<std::unique_ptr<DeviceBuffer>, 2> outputs_;  // by OutputId
    CommandCounts counts_;
};

}  // namespace plait::vulkan
