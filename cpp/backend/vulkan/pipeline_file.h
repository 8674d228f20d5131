// The pipeline cache of a driver on disk. Drivers trust the contents of a pipeline cache, so it is
// only given to the driver that produced it, and only if its checksum matches. A file that is
// damaged, truncated or from another driver is treated as missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace plait::vulkan {

// Identifies a driver and a device.
struct Driver {
    uint32_t vendor = 0;
    uint32_t device = 0;
    uint32_t version = 0;
    std::array<uint8_t, 16> cache_uuid{};
    std::array<uint8_t, 16> driver_uuid{};
};

// Returns the contents of a file: a header with the driver, the length and checksum of the data,
// then the data.
std::vector<std::byte> encode_pipeline_file(const Driver& driver, std::span<const std::byte> data);
// Returns the data in a file; empty unless the header matches the driver and the data exactly.
std::span<const std::byte> decode_pipeline_file(const Driver& driver,
                                                std::span<const std::byte> file);

// Failures to read or write are logged and not reported to the caller.
class PipelineFile {
public:
    // The file is in pipeline_cache_folder().
    explicit PipelineFile(const Driver& driver);

    bool enabled() const { return !path_.empty(); }
    std::vector<std::byte> read() const;
    // Replaces the file atomically: a concurrent reader sees either the old file or the new one.
    void write(std::span<const std::byte> data) const;

private:
    Driver driver_;
    std::string path_;
};

}  // namespace plait::vulkan
