// The compute pipelines of a device, made when first asked for. Drivers take long to make them, so
// what comes of it is kept on disk for the next process; see pipeline_file.h.
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

// What every pipeline is pushed: where its arguments and its run's frame are. See frame.h.
struct Push {
    uint64_t args = 0;
    uint64_t frame = 0;
};

// Safe to use from several threads.
class Pipelines {
public:
    Pipelines(vk::PhysicalDevice physical, vk::Device device);

    vk::PipelineLayout layout() const { return *layout_; }
    // That of shaders/<shader>.comp with these specialization constants, from 0 on. vk::SystemError
    // where the driver cannot make it.
    vk::Pipeline get(std::string_view shader, std::span<const uint32_t> constants);
    // Writes the file if pipelines were made since it was written.
    void keep();

private:
    vk::UniquePipeline make(std::string_view shader, std::span<const uint32_t> constants) const;

    vk::Device device_;
    PipelineFile file_;
    vk::UniquePipelineLayout layout_;
    vk::UniquePipelineCache cache_;
    std::mutex mutex_;
    std::map<std::pair<std::string, std::vector<uint32_t>>, vk::UniquePipeline> known_;
    bool is_kept_ = true;
};

}  // namespace plait::vulkan
