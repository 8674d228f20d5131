#include "backend/packed_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/checked.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 65536;  // of regions; a multiple of every page size
constexpr std::string_view kSuffix = ".packed";

// Identifies the library or program that contains this code, whose packing the file has.
std::string library_identity() {
    Dl_info found{};
    struct stat status {};
    if (dladdr(reinterpret_cast<const void*>(&library_identity), &found) == 0 ||
        stat(found.dli_fname, &status) != 0)
        return {};
    return text(status.st_dev, ":", status.st_ino, ":", status.st_size, ":", status.st_ctim.tv_sec,
                ".", status.st_ctim.tv_nsec);
}

std::string boot_identity() {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id;
}

// The file's name begins with the boot, so that files of earlier boots are recognised.
std::string file_name(const std::string& boot, const std::string& identity) {
    return text(boot, "-", checksum(identity), "-", checksum(text("again ", identity)), kSuffix);
}

struct Entry {
    fs::path path;
    uint64_t bytes;
    fs::file_time_type opened;
};

std::vector<Entry> entries(const fs::path& folder) {
    std::vector<Entry> found;
    for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
        std::error_code error;
        struct stat status {};
        if (file.path().extension() != kSuffix || ::stat(file.path().c_str(), &status) != 0)
            continue;  // deleted meanwhile, or not ours
        const auto opened = file.last_write_time(error);
        if (!error)
            found.push_back({file.path(), static_cast<uint64_t>(status.st_blocks) * 512, opened});
    }
    return found;
}

// Deletes files of earlier boots, then those opened longest ago, until `needed` more bytes fit.
// Processes that have mapped a deleted file keep it.
void make_room(const fs::path& folder, const std::string& boot, uint64_t needed) {
    std::vector<Entry> files = entries(folder);
    std::ranges::sort(files, {}, &Entry::opened);
    uint64_t used = 0;
    for (const Entry& file : files) used += file.bytes;
    for (const Entry& file : files) {
        const bool old = !file.path.filename().string().starts_with(boot);
        if (!old && used + needed <= PackedFile::kMaxFolderBytes) continue;
        std::error_code ignored;
        fs::remove(file.path, ignored);
        used -= file.bytes;
    }
}

[[noreturn]] void fail(const std::string& path, const char* what) {
    throw std::system_error(errno, std::generic_category(), text(path, ": ", what));
}

}  // namespace

std::unique_ptr<PackedFile> PackedFile::open(const std::string& folder, const std::string& identity,
                                             std::span<const uint64_t> bytes) try {
    const std::string boot = boot_identity(), library = library_identity();
    if (boot.empty() || library.empty()) return nullptr;
    std::unique_ptr<PackedFile> file(new PackedFile);
    uint64_t end = align_up(bytes.size(), kAlignment), matrices = 0;
    for (const uint64_t n : bytes) {
        file->regions_.push_back({end, n});
        end += align_up(n, kAlignment);
        matrices += n;
    }
    file->size_ = end;

    if (fs::create_directories(folder)) fs::permissions(folder, fs::perms::owner_all);
    const fs::path path = fs::path(folder) / file_name(boot, text(identity, " ", library));
    if (!fs::exists(path)) {
        make_room(folder, boot, matrices);
        const uint64_t free = fs::space(folder).available;
        if (matrices > kMaxFolderBytes || matrices > free / 2) {
            log(LogLevel::info, text(folder, ": packed weights of ", matrices,
                                     " bytes are not kept: ", free, " bytes are free"));
            return nullptr;
        }
    }
    if (!file->map(path.string())) {
        // Another version of this format has left it.
        fs::remove(path);
        if (!file->map(path.string())) return nullptr;
    }
    return file;
} catch (const std::system_error& error) {
    log(LogLevel::info, text("packed weights are not kept: ", error.what()));
    return nullptr;
}

// Returns false if the file exists with another size.
bool PackedFile::map(const std::string& path) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ < 0) fail(path, "cannot be opened");
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail(path, "cannot be inspected");
    if (status.st_uid != ::geteuid()) {
        errno = EPERM;
        fail(path, "belongs to another user");
    }
    // Two processes that create the file give it the same size.
    if (status.st_size == 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0)
        fail(path, "cannot be extended");
    if (status.st_size != 0 && static_cast<uint64_t>(status.st_size) != size_) return false;
    ::futimens(fd_, nullptr);  // make_room deletes the least recently opened
    const size_t table = std::max<size_t>(regions_.size(), 1);
    void* writable = ::mmap(nullptr, table, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (writable == MAP_FAILED) fail(path, "cannot be mapped");
    table_ = static_cast<std::byte*>(writable);
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(table)) != 0) fail(path, "cannot be extended");
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
    if (data == MAP_FAILED) fail(path, "cannot be mapped");
    data_ = static_cast<const std::byte*>(data);
    return true;
}

PackedFile::~PackedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
    if (table_) ::munmap(table_, std::max<size_t>(regions_.size(), 1));
    if (fd_ >= 0) ::close(fd_);
}

const std::byte* PackedFile::find(size_t i) const {
    const auto complete = std::atomic_ref(table_[i]).load(std::memory_order_acquire);
    return complete == std::byte{1} ? data_ + regions_[i].begin : nullptr;
}

const std::byte* PackedFile::fill(size_t i, const std::function<void(std::byte*)>& write) {
    const auto [begin, bytes] = regions_[i];
    const auto offset = static_cast<off_t>(begin);
    // Without space for the pages, writing to them would end the process.
    if (::fallocate(fd_, 0, offset, static_cast<off_t>(bytes)) != 0) return nullptr;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
    if (memory == MAP_FAILED) return nullptr;
    const std::unique_ptr<void, std::function<void(void*)>> mapped(
        memory, [bytes](void* p) { ::munmap(p, bytes); });
    write(static_cast<std::byte*>(memory));
    std::atomic_ref(table_[i]).store(std::byte{1}, std::memory_order_release);
    return find(i);
}

}  // namespace plait
