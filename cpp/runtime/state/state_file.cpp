#include "runtime/state/state_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "platform/file.h"
#include "runtime/state/state_format.h"

namespace plait {
namespace {

using platform::FileKind;
using platform::FileStatus;
using Access = platform::File::Access;

// Throws unless `error` is 0.
void check(int error, const char* what) {
    if (error == 0) return;
    const std::string problem = text(what, ": ", std::generic_category().message(error));
    if (error == ENOENT) throw StateNotFound(problem);
    throw StateError(problem);
}

class File {
public:
    File(const std::string& path, Access access, const char* what) {
        check(file_.open(path, access), what);
    }

    platform::File& operator*() { return file_; }
    FileStatus status() const {
        FileStatus status;
        check(file_.status(&status), "cannot be inspected");
        return status;
    }
    void read(uint64_t offset, std::span<std::byte> target) const {
        while (!target.empty()) {
            size_t got = 0;
            check(file_.read(offset, target, &got), "cannot be read");
            if (got == 0) throw StateError(text("ends at byte ", offset, " while being read"));
            offset += got;
            target = target.subspan(got);
        }
    }

private:
    platform::File file_;
};

// A temporary file next to the target. Locked, so that only one writer uses it at a time.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& path) : path_(path + ".plait-tmp") {
        do {
            file_.emplace(path_, Access::write, "cannot be written");
            if (file_->status().kind != FileKind::regular)
                throw StateError(text("cannot be written: ", path_, " is not a regular file"));
            // On file systems without locks, callers must not write to one path concurrently.
            (**file_).lock();
            // Another writer may have renamed the file before this one got the lock.
        } while (!is_in_place());
    }
    ~TemporaryFile() {
        if (!renamed_) platform::remove_file(path_);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    void write(std::span<const std::byte> bytes) {
        check((**file_).resize(0), "cannot be written");
        check((**file_).write(bytes), "cannot be written");
    }
    void take_mode_of(const std::string& path) {
        FileStatus old;
        if (platform::status_of(path, &old) == 0) (**file_).set_permissions(old.permissions);
    }
    void replace(const std::string& path) {
        check((**file_).sync(), "cannot be written");
        check(platform::rename_file(path_, path), "cannot be replaced");
        renamed_ = true;
    }

private:
    bool is_in_place() const {
        FileStatus current;
        const FileStatus mine = file_->status();
        return platform::status_of(path_, &current) == 0 && current.inode == mine.inode &&
               current.device == mine.device;
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

void write_file(const std::string& path, std::span<const std::byte> bytes) {
    check_path(path);
    const std::string target = target_of(path);
    FileStatus old;
    if (platform::status_of(target, &old) == 0 && old.kind != FileKind::regular)
        throw StateError("is not a regular file");
    std::string folder = std::filesystem::path(target).parent_path().string();
    if (folder.empty()) folder = ".";
    TemporaryFile draft(target);
    draft.take_mode_of(target);
    draft.write(bytes);
    draft.replace(target);
    platform::sync_folder(folder);
}

FileBytes read_file(const std::string& path) {
    check_path(path);
    const File file(path, Access::read, "cannot be opened");
    const FileStatus status = file.status();
    if (status.kind != FileKind::regular) throw StateError("is not a regular file");
    const uint64_t size = status.bytes;
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
