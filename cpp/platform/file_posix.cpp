#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/mount.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "platform/file.h"

namespace plait::platform {
namespace {

// Linux transfers less than 2^31 bytes per call, macOS refuses more.
constexpr size_t kMaxPerCall = size_t{1} << 30;

template <typename Call>
auto retry(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

int error_of(int result) { return result == 0 ? 0 : errno; }

FileTime time_of(const timespec& time) { return {time.tv_sec, time.tv_nsec}; }

FileKind kind_of(mode_t mode) {
    if (S_ISREG(mode)) return FileKind::regular;
    if (S_ISDIR(mode)) return FileKind::folder;
    if (S_ISFIFO(mode)) return FileKind::pipe;
    return FileKind::device;  // a socket cannot be opened
}

FileStatus convert(const struct stat& from) {
    FileStatus to;
    to.kind = kind_of(from.st_mode);
    to.bytes = static_cast<uint64_t>(from.st_size);
    to.bytes_on_disk = static_cast<uint64_t>(from.st_blocks) * 512;
#if defined(__APPLE__)
    to.modified = time_of(from.st_mtimespec);
    to.changed = time_of(from.st_ctimespec);
#else
    to.modified = time_of(from.st_mtim);
    to.changed = time_of(from.st_ctim);
#endif
    to.device = static_cast<uint64_t>(from.st_dev);
    to.inode = from.st_ino;
    to.permissions = from.st_mode & 0777;
    to.belongs_to_user = from.st_uid == ::geteuid();
    return to;
}

int flags_of(File::Access access) {
    constexpr int kCommon = O_CLOEXEC | O_NOCTTY;
    switch (access) {
    case File::Access::read: return O_RDONLY | O_NONBLOCK | kCommon;
    case File::Access::write:
    case File::Access::write_private: return O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | kCommon;
    }
    return 0;
}

std::byte* checked(void* mapped) {
    return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

}  // namespace

int status_of(const std::string& path, FileStatus* status) {
    struct stat found {};
    const int result = ::stat(path.c_str(), &found);
    *status = convert(found);
    return error_of(result);
}

int remove_file(const std::string& path) { return error_of(::unlink(path.c_str())); }

int rename_file(const std::string& from, const std::string& to) {
    return error_of(::rename(from.c_str(), to.c_str()));
}

void sync_folder(const std::string& folder) {
    const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return;
    ::fsync(handle);
    ::close(handle);
}

bool is_local([[maybe_unused]] const std::string& folder) {
#if defined(__linux__)
    constexpr uint32_t kExt = 0xef53, kXfs = 0x58465342, kBtrfs = 0x9123683e, kF2fs = 0xf2f52010,
                       kZfs = 0x2fc12fc1, kBcachefs = 0xca451a4e, kOverlay = 0x794c7630,
                       kTmpfs = 0x01021994, kRamfs = 0x858458f6;
    constexpr std::array kLocal = {kExt,      kXfs,     kBtrfs, kF2fs, kZfs,
                                   kBcachefs, kOverlay, kTmpfs, kRamfs};
    struct statfs found {};
    return ::statfs(folder.c_str(), &found) == 0 &&
           std::ranges::find(kLocal, static_cast<uint32_t>(found.f_type)) != kLocal.end();
#elif defined(__APPLE__)
    struct statfs found {};
    return ::statfs(folder.c_str(), &found) == 0 && (found.f_flags & MNT_LOCAL) != 0;
#else
    return false;
#endif
}

File::~File() {
    if (handle_ >= 0) ::close(handle_);
}

int File::open(const std::string& path, Access access) {
    if (handle_ >= 0) ::close(handle_);
    const mode_t mode = access == Access::write_private ? 0600 : 0666;
    handle_ = retry([&] { return ::open(path.c_str(), flags_of(access), mode); });
    return handle_ >= 0 ? 0 : errno;
}

int File::status(FileStatus* status) const {
    struct stat found {};
    const int result = ::fstat(handle_, &found);
    *status = convert(found);
    return error_of(result);
}

int File::read(uint64_t offset, std::span<std::byte> target, size_t* got) const {
    const ssize_t n = retry([&] {
        return ::pread(handle_, target.data(), std::min(target.size(), kMaxPerCall),
                       static_cast<off_t>(offset));
    });
    *got = n < 0 ? 0 : static_cast<size_t>(n);
    return n < 0 ? errno : 0;
}

int File::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = retry(
            [&] { return ::write(handle_, bytes.data(), std::min(bytes.size(), kMaxPerCall)); });
        if (n < 0) return errno;
        bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return 0;
}

int File::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
        const ssize_t n = retry([&] {
            return ::pwrite(handle_, bytes.data(), std::min(bytes.size(), kMaxPerCall),
                            static_cast<off_t>(offset));
        });
        if (n < 0) return errno;
        bytes = bytes.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
    return 0;
}

int File::resize(uint64_t bytes) {
    return error_of(::ftruncate(handle_, static_cast<off_t>(bytes)));
}

int File::reserve(uint64_t offset, uint64_t bytes) {
#if defined(__linux__)
    return error_of(::fallocate(handle_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)));
#elif defined(__APPLE__)
    fstore_t range{F_ALLOCATEALL, F_PEOFPOSMODE, 0, static_cast<off_t>(offset + bytes), 0};
    return ::fcntl(handle_, F_PREALLOCATE, &range) < 0 ? errno : 0;
#else
    return ::posix_fallocate(handle_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
#endif
}

int File::sync() {
    return error_of(retry([&] { return ::fsync(handle_); }));
}

int File::lock() {
    return error_of(retry([&] { return ::flock(handle_, LOCK_EX); }));
}

int File::set_permissions(uint32_t permissions) {
    return error_of(::fchmod(handle_, static_cast<mode_t>(permissions)));
}

int File::touch() { return error_of(::futimens(handle_, nullptr)); }

std::byte* File::map_private(uint64_t bytes) const {
    return checked(::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, handle_, 0));
}

std::byte* File::map_shared(uint64_t offset, uint64_t bytes, bool writable) const {
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    return checked(
        ::mmap(nullptr, bytes, protection, MAP_SHARED, handle_, static_cast<off_t>(offset)));
}

void unmap(const std::byte* start, uint64_t bytes) {
    ::munmap(const_cast<std::byte*>(start), bytes);
}

}  // namespace plait::platform
#endif
