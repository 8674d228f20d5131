#include "runtime/state/state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "runtime/state/state_format.h"

namespace plait {
namespace {

constexpr size_t kMaxPerCall = size_t{1} << 30;  // Linux transfers less than 2^31 bytes per call

[[noreturn]] void fail(const char* what, int error = errno) {
    const std::string problem = text(what, ": ", std::generic_category().message(error));
    if (error == ENOENT) throw StateNotFound(problem);
    throw StateError(problem);
}

template <typename Call>
auto retry(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

class File {
public:
    File(const std::string& path, int flags, const char* what) {
        fd_ = retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, 0666); });
        if (fd_ < 0) fail(what);
    }
    ~File() { ::close(fd_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int fd() const { return fd_; }
    struct stat status() const {
        struct stat status {};
        if (::fstat(fd_, &status) != 0) fail("cannot be inspected");
        return status;
    }
    void write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t n = retry(
                [&] { return ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxPerCall)); });
            if (n < 0) fail("cannot be written");
            bytes = bytes.subspan(static_cast<size_t>(n));
        }
    }
    void read(uint64_t offset, std::span<std::byte> target) const {
        while (!target.empty()) {
            const ssize_t n = retry([&] {
                return ::pread(fd_, target.data(), std::min(target.size(), kMaxPerCall),
                               static_cast<off_t>(offset));
            });
            if (n < 0) fail("cannot be read");
            if (n == 0) throw StateError(text("ends at byte ", offset, " while being read"));
            offset += static_cast<uint64_t>(n);
            target = target.subspan(static_cast<size_t>(n));
        }
    }
    void sync() {
        if (retry([&] { return ::fsync(fd_); }) != 0) fail("cannot be written");
    }

private:
    int fd_ = -1;
};

// A temporary file next to the target. Locked, so that only one writer uses it at a time.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& path) : path_(path + ".plait-tmp") {
        do {
            file_.emplace(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, "cannot be written");
            if (!S_ISREG(file_->status().st_mode))
                throw StateError(text("cannot be written: ", path_, " is not a regular file"));
            // On file systems without locks, callers must not write to one path concurrently.
            retry([&] { return ::flock(file_->fd(), LOCK_EX); });
            // Another writer may have renamed the file before this one got the lock.
        } while (!is_in_place());
    }
    ~TemporaryFile() {
        if (!renamed_) ::unlink(path_.c_str());
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    void write(std::span<const std::byte> bytes) {
        if (::ftruncate(file_->fd(), 0) != 0) fail("cannot be written");
        file_->write(bytes);
    }
    void take_mode_of(const std::string& path) {
        struct stat old {};
        if (::stat(path.c_str(), &old) == 0) ::fchmod(file_->fd(), old.st_mode & 0777);
    }
    void replace(const std::string& path) {
        file_->sync();
        if (::rename(path_.c_str(), path.c_str()) != 0) fail("cannot be replaced");
        renamed_ = true;
    }

private:
    bool is_in_place() const {
        struct stat current {};
        const struct stat mine = file_->status();
        return ::stat(path_.c_str(), &current) == 0 && current.st_ino == mine.st_ino &&
               current.st_dev == mine.st_dev;
    }

    std::string path_;
    std::optional<File> file_;
    bool renamed_ = false;
};

void check_path(const std::string& path) {
    if (path.find('\0') != std::string::npos) throw StateError("the path contains a NUL byte");
}

// Resolves symbolic links, so that saving to a link replaces its target and not the link.
std::string target_of(const std::string& path) {
    std::error_code error;
    const auto target = std::filesystem::canonical(path, error);
    return error ? path : target.string();
}

// Makes the rename durable. Errors are ignored, since the file has already been replaced.
void sync_folder(const std::string& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
    check_path(path);
    const std::string target = target_of(path);
    struct stat old {};
    if (::stat(target.c_str(), &old) == 0 && !S_ISREG(old.st_mode))
        throw StateError("is not a regular file");
    std::string folder = std::filesystem::path(target).parent_path().string();
    if (folder.empty()) folder = ".";
    TemporaryFile draft(target);
    draft.take_mode_of(target);
    draft.write(bytes);
    draft.replace(target);
    sync_folder(folder);
}

FileBytes read_file(const std::string& path) {
    check_path(path);
    // O_NONBLOCK: otherwise opening a pipe without a writer would block.
    const File file(path, O_RDONLY | O_NONBLOCK, "cannot be opened");
    const struct stat status = file.status();
    if (!S_ISREG(status.st_mode)) throw StateError("is not a regular file");
    const auto size = static_cast<uint64_t>(status.st_size);
    std::vector<std::byte> first(std::min<uint64_t>(size, kStateHeaderBytes));
    file.read(0, first);
    if (const uint64_t expected = read_state_bytes(first); expected != size)
        throw StateError(text("has ", size, " bytes, expected ", expected));
    FileBytes bytes(size);
    file.read(0, bytes.all());
    return bytes;
}

}  // namespace

void write_state_file(const std::string& path, std::span<const std::byte> state) {
    with_path(path, [&] { write_file(path, state); });
}

FileBytes read_state_file(const std::string& path) {
    return with_path(path, [&] { return read_file(path); });
}

}  // namespace plait
