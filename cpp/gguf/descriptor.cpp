#include "gguf/descriptor.h"

#include <cerrno>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace plait::gguf {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

const char* name_of(platform::FileKind kind) {
    if (kind == platform::FileKind::folder) return "a directory";
    return kind == platform::FileKind::pipe ? "a pipe" : "a device";
}

}  // namespace

Descriptor::Descriptor(const std::string& path) : path_(path) {
    if (path.find('\0') != std::string::npos) {
        throw ModelError(text(path.c_str(), ": cannot be opened: the path contains a NUL byte"));
    }
    if (const int error = file_.open(path, platform::File::Access::read); error != 0) {
        const std::string problem = text(path, ": cannot be opened: ", reason(error));
        if (error == ENOENT) throw ModelNotFound(problem);
        throw ModelError(problem);
    }
    if (const int error = file_.status(&status_); error != 0) {
        throw ModelError(text(path_, ": cannot be inspected: ", reason(error)));
    }
    if (status_.kind != platform::FileKind::regular) {
        throw ModelError(text(path_, ": is ", name_of(status_.kind), ", expected a regular file"));
    }
}

Descriptor::~Descriptor() {
    if (!mapping_.empty()) platform::unmap(mapping_.data(), mapping_.size());
}

std::string Descriptor::identity() const {
    const platform::FileTime modified = status_.modified, changed = status_.changed;
    return text(status_.device, ":", status_.inode, ":", status_.bytes, ":", modified.seconds, ".",
                modified.nanoseconds, ":", changed.seconds, ".", changed.nanoseconds);
}

bool Descriptor::is_same_file(const Descriptor& other) const {
    const auto key = [](const platform::FileStatus& status) {
        return std::tie(status.device, status.inode, status.bytes, status.modified);
    };
    return key(status_) == key(other.status_);
}

void Descriptor::read(uint64_t offset, std::span<std::byte> target) const {
    while (!target.empty()) {
        size_t got = 0;
        if (const int error = file_.read(offset, target, &got); error != 0) {
            throw ModelError(text(path_, ": cannot be read at byte ", offset, ": ", reason(error)));
        }
        if (got == 0) {
            throw ModelError(text(path_, ": ends at byte ", offset, ", expected ", target.size(),
                                  " bytes more"));
        }
        offset += got;
        target = target.subspan(got);
    }
}

void Descriptor::check_unchanged() const {
    platform::FileStatus now;
    if (const int error = file_.status(&now); error != 0) {
        throw ModelError(text(path_, ": cannot be inspected: ", reason(error)));
    }
    if (now.bytes != status_.bytes) {
        throw ModelError(text(path_, ": changed since it was opened: it has ", now.bytes,
                              " bytes, expected ", status_.bytes));
    }
    if (now.modified != status_.modified) {
        throw ModelError(text(path_, ": changed since it was opened: it was modified"));
    }
}

std::span<const std::byte> Descriptor::map() {
    if (size() > 0) {
        const std::byte* start = file_.map_private(size());
        if (!start) throw ModelError(text(path_, ": cannot be mapped: ", reason(errno)));
        mapping_ = {start, size()};
    }
    return mapping_;
}

}  // namespace plait::gguf
