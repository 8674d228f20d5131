#include "backend/vulkan/pipeline_file.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "backend/vulkan/settings.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "platform/process.h"

namespace plait::vulkan {
namespace {

namespace fs = std::filesystem;

struct Header {
    std::array<char, 8> magic{'p', 'l', 'a', 'i', 't', 'v', 'k', 'p'};
    uint32_t version = 1;
    Driver driver;
    uint64_t bytes = 0;     // of the data, which follows the header
    uint64_t checksum = 0;  // of the data
};
// Without padding, so that headers can be compared as bytes.
static_assert(sizeof(Driver) == 44 && sizeof(Header) == 72);

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

Header header_of(const Driver& driver, std::span<const std::byte> data) {
    Header header;
    header.driver = driver;
    header.bytes = data.size();
    header.checksum = checksum(data);
    return header;
}

// Returns the path for a driver, empty if the cache is off. Each driver and device has its own
// file.
std::string path_for(const Driver& driver) {
    const fs::path folder = pipeline_cache_folder();
    if (folder.empty()) return {};
    std::array<char, 17> digest{};
    std::to_chars(digest.data(), digest.data() + 16, checksum(std::as_bytes(std::span(&driver, 1))),
                  16);
    return folder / text("vulkan-", digest.data(), ".pipelines");
}

void log_debug(const std::string& path, std::string_view message) {
    log(LogLevel::debug, text("vulkan: ", path, ": ", message));
}

}  // namespace

std::vector<std::byte> encode_pipeline_file(const Driver& driver, std::span<const std::byte> data) {
    const Header header = header_of(driver, data);
    std::vector<std::byte> file(sizeof header + data.size());
    std::memcpy(file.data(), &header, sizeof header);
    if (!data.empty()) std::memcpy(file.data() + sizeof header, data.data(), data.size());
    return file;
}

std::span<const std::byte> decode_pipeline_file(const Driver& driver,
                                                std::span<const std::byte> file) {
    if (file.size() < sizeof(Header)) return {};
    const std::span<const std::byte> data = file.subspan(sizeof(Header));
    const Header expected = header_of(driver, data);
    return std::memcmp(file.data(), &expected, sizeof expected) == 0 ? data
                                                                     : std::span<const std::byte>();
}

PipelineFile::PipelineFile(const Driver& driver) : driver_(driver), path_(path_for(driver)) {}

std::vector<std::byte> PipelineFile::read() const {
    std::error_code error;
    const uint64_t size = enabled() ? fs::file_size(path_, error) : 0;
    if (error || size == 0 || size > kMaxFileBytes) return {};
    std::vector<std::byte> file(size);
    std::ifstream stream(path_, std::ios::binary);
    stream.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(size));
    const std::span<const std::byte> data =
        stream ? decode_pipeline_file(driver_, file) : std::span<const std::byte>();
    if (data.empty()) log_debug(path_, "not used: damaged or from another driver");
    return {data.begin(), data.end()};
}

void PipelineFile::write(std::span<const std::byte> data) const {
    static std::atomic<int> counter{0};
    const std::vector<std::byte> file = encode_pipeline_file(driver_, data);
    const std::string temporary = text(path_, ".", platform::process_id(), "-", counter++);
    std::error_code error;
    fs::create_directories(fs::path(path_).parent_path(), error);
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(file.data()),
                 static_cast<std::streamsize>(file.size()));
    stream.close();
    if (stream) {
        fs::rename(temporary, path_, error);
        if (!error) return;
    }
    std::error_code ignored;
    fs::remove(temporary, ignored);
    log_debug(path_, "cannot be written; the next process creates all pipelines again");
}

}  // namespace plait::vulkan
