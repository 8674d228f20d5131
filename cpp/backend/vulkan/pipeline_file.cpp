#include "backend/vulkan/pipeline_file.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/checksum.h"
#include "base/log.h"
#include "base/text.h"

namespace plait::vulkan {
namespace {

namespace fs = std::filesystem;

struct Header {
    std::array<char, 8> magic{'p', 'l', 'a', 'i', 't', 'v', 'k', 'p'};
    uint32_t version = 1;
    Driver driver;
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // of what follows
};
// No padding, so that headers can be compared as bytes.
static_assert(sizeof(Driver) == 44 && sizeof(Header) == 72);

constexpr uint64_t kMostBytes = uint64_t{1} << 30;

Header header_of(const Driver& driver, std::span<const std::byte> data) {
    Header header;
    header.driver = driver;
    header.bytes = data.size();
    header.checksum = checksum(data);
    return header;
}

// Of an environment variable; empty counts as not set.
std::string_view value(const char* text) { return text == nullptr ? "" : text; }

// Empty where nothing is to be kept, or no folder is known.
fs::path folder() {
    if (const std::string_view own = value(std::getenv("PLAIT_VULKAN_CACHE")); !own.empty())
        return own == "off" ? fs::path() : fs::path(own);
    if (const std::string_view cache = value(std::getenv("XDG_CACHE_HOME")); cache.starts_with('/'))
        return fs::path(cache) / "plait";
    if (const std::string_view home = value(std::getenv("HOME")); !home.empty())
        return fs::path(home) / ".cache" / "plait";
    return {};
}

// One file a driver, so that two GPUs do not take each other's place.
std::string path_for(const Driver& driver) {
    const fs::path where = folder();
    if (where.empty()) return {};
    std::array<char, 17> digest{};
    std::to_chars(digest.data(), digest.data() + 16, checksum(std::as_bytes(std::span(&driver, 1))),
                  16);
    return where / text("vulkan-", digest.data(), ".pipelines");
}

void note(const std::string& path, std::string_view what) {
    log(LogLevel::debug, text("vulkan: ", path, ": ", what));
}

}  // namespace

std::vector<std::byte> seal(const Driver& driver, std::span<const std::byte> data) {
    const Header header = header_of(driver, data);
    std::vector<std::byte> file(sizeof header + data.size());
    std::memcpy(file.data(), &header, sizeof header);
    if (!data.empty()) std::memcpy(file.data() + sizeof header, data.data(), data.size());
    return file;
}

std::span<const std::byte> unseal(const Driver& driver, std::span<const std::byte> file) {
    if (file.size() < sizeof(Header)) return {};
    const std::span<const std::byte> data = file.subspan(sizeof(Header));
    const Header expected = header_of(driver, data);
    return std::memcmp(file.data(), &expected, sizeof expected) == 0 ? data
                                                                     : std::span<const std::byte>();
}

PipelineFile::PipelineFile(const Driver& driver) : driver_(driver), path_(path_for(driver)) {}

std::vector<std::byte> PipelineFile::read() const {
    std::error_code error;
    const uint64_t size = wanted() ? fs::file_size(path_, error) : 0;
    if (error || size == 0 || size > kMostBytes) return {};
    std::vector<std::byte> file(size);
    std::ifstream stream(path_, std::ios::binary);
    stream.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(size));
    const std::span<const std::byte> data =
        stream ? unseal(driver_, file) : std::span<const std::byte>();
    if (data.empty()) note(path_, "is damaged or another driver's, and is not used");
    return {data.begin(), data.end()};
}

void PipelineFile::write(std::span<const std::byte> data) const {
    static std::atomic<int> drafts{0};
    const std::vector<std::byte> file = seal(driver_, data);
    const std::string draft = text(path_, ".", ::getpid(), "-", drafts++);
    std::error_code error;
    fs::create_directories(fs::path(path_).parent_path(), error);
    std::ofstream stream(draft, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(file.data()),
                 static_cast<std::streamsize>(file.size()));
    stream.close();
    if (stream) {
        fs::rename(draft, path_, error);
        if (!error) return;
    }
    std::error_code ignored;
    fs::remove(draft, ignored);
    note(path_, "cannot be written; pipelines are made again by the next process");
}

}  // namespace plait::vulkan
