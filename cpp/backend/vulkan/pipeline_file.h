// Pipelines of earlier processes, on disk: what a driver made of our shaders, given to the same
// driver and to no other. Drivers trust what they are given, so nothing reaches them that is not byte
// for byte what they gave us: a file that is damaged, cut off or another driver's counts as none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace plait::vulkan {

// Who can read such a file.
struct Driver {
    uint32_t vendor = 0;
    uint32_t device = 0;
    uint32_t version = 0;
    std::array<uint8_t, 16> cache_uuid{};
    std::array<uint8_t, 16> driver_uuid{};
};

// A file's bytes: a header that names the driver, with the length and the checksum of what follows.
std::vector<std::byte> seal(const Driver& driver, std::span<const std::byte> data);
// What was sealed for that driver; nothing where the bytes are not exactly that.
std::span<const std::byte> unseal(const Driver& driver, std::span<const std::byte> file);

// Failures are noted in the log and are no failures of whoever asks.
class PipelineFile {
public:
    // In the folder PLAIT_VULKAN_CACHE, or plait in XDG_CACHE_HOME or ~/.cache; "off": nowhere.
    explicit PipelineFile(const Driver& driver);

    bool wanted() const { return !path_.empty(); }
    std::vector<std::byte> read() const;
    // In one piece: who reads at the same time sees the old file or the new one.
    void write(std::span<const std::byte> data) const;

private:
    Driver driver_;
    std::string path_;
};

}  // namespace plait::vulkan
