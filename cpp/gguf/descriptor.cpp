#include "gguf/descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace plait::gguf {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// O_NONBLOCK keeps the opening of a pipe without a writer from blocking; regular files ignore it.
int open_for_reading(const std::string& path) {
    for (;;) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0) return fd;
        if (errno == EINTR) continue;
        const std::string problem = text(path, ": cannot be opened: ", reason(errno));
        if (errno == ENOENT) throw ModelNotFound(problem);
        throw ModelError(problem);
    }
}

const char* kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    return "a device";  // a socket cannot be opened
}

}  // namespace

Descriptor::Descriptor(const std::string& path) : path_(path) {
    if (path.find('\0') != std::string::npos) {
        throw ModelError(text(path.c_str(), ": cannot be opened: the path contains a NUL byte"));
    }
    const int fd = open_for_reading(path);
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        const int error = errno;
        ::close(fd);
        throw ModelError(text(path_, ": cannot be inspected: ", reason(error)));
    }
    if (!S_ISREG(status.st_mode)) {
        ::close(fd);
        throw ModelError(
            text(path_, ": is ", kind_of(status.st_mode), ", expected a regular file"));
    }
    fd_ = fd;
    size_ = static_cast<uint64_t>(status.st_size);
    modified_ = status.st_mtim;
    identity_ = text(status.st_dev, ":", status.st_ino, ":", size_, ":", modified_.tv_sec, ".",
                     modified_.tv_nsec, ":", status.st_ctim.tv_sec, ".", status.st_ctim.tv_nsec);
}

Descriptor::~Descriptor() {
    if (!mapping_.empty()) {
        ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
    }
    ::close(fd_);
}

void Descriptor::read(uint64_t offset, std::span<std::byte> target) const {
    // Linux reads at most 2^31 - 4096 bytes per call.
    constexpr size_t kMaxPerCall = size_t{1} << 30;
    while (!target.empty()) {
        const ssize_t got = ::pread(fd_, target.data(), std::min(target.size(), kMaxPerCall),
                                    static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            throw ModelError(text(path_, ": cannot be read at byte ", offset, ": ", reason(errno)));
        }
        if (got == 0) {
            throw ModelError(text(path_, ": ends at byte ", offset, ", expected ", target.size(),
                                  " bytes more"));
        }
        offset += static_cast<uint64_t>(got);
        target = target.subspan(static_cast<size_t>(got));
    }
}

void Descriptor::check_unchanged() const {
    struct stat now {};
    if (::fstat(fd_, &now) != 0) {
        throw ModelError(text(path_, ": cannot be inspected: ", reason(errno)));
    }
    if (static_cast<uint64_t>(now.st_size) != size_) {
        throw ModelError(text(path_, ": changed since it was opened: it has ", now.st_size,
                              " bytes, expected ", size_));
    }
    if (now.st_mtim.tv_sec != modified_.tv_sec || now.st_mtim.tv_nsec != modified_.tv_nsec) {
        throw ModelError(text(path_, ": changed since it was opened: it was modified"));
    }
}

std::span<const std::byte> Descriptor::map() {
    if (size_ > 0) {
        void* const start = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
        if (start == MAP_FAILED) {
            throw ModelError(text(path_, ": cannot be mapped: ", reason(errno)));
        }
        mapping_ = {static_cast<const std::byte*>(start), size_};
    }
    return mapping_;
}

}  // namespace plait::gguf
