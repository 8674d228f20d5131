// The compute pipelines of a device, created on first use. Creating them is slow, so the pipeline
// cache of the driver is saved to disk for the next process; see pipeline_file.h.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/vulkan/pipeline_file.h"
#include "backend/vulkan/vk.h"

namespace plait::vulkan {

// Push constants of every pipeline: the device addresses of its arguments and of the frame. See
// frame.h.
struct Push {
    uint64_t args = 0;
    uint64_t frame = 0;
};

// Thread-safe.
class Pipelines {
public:
    Pipelines(vk::PhysicalDevice physical, vk::Device device);

    vk::PipelineLayout layout() const { return *layout_; }
    // Returns the pipeline of shaders/<shader>.comp with these values of specialization constants
    // 0, 1, ... Throws vk::SystemError if the driver cannot create it.
    vk::Pipeline get(std::string_view shader, std::span<const uint32_t> constants);
    // Writes the pipeline cache to disk if pipelines were created since it was last written.
    void save();

private:
    vk::UniquePipeline create(std::string_view shader, std::span<const uint32_t> constants) const;

    vk::Device device_;
    PipelineFile file_;
    vk::UniquePipelineLayout layout_;
    vk::UniquePipelineCache cache_;
    std::mutex mutex_;
    std::map<std::pair<std::string, std::vector<uint32_t>>, vk::UniquePipeline> pipelines_;
    bool is_saved_ = true;
};

}  // namespace plait::vulkan
