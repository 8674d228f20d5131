// Files of the operating system. file_posix.cpp implements this header for Linux and macOS,
// file_windows.cpp for Windows.
//
// Functions return 0, or an error number of std::generic_category().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace plait::platform {

enum class FileKind { regular, folder, pipe, device };

struct FileTime {
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const FileTime&) const = default;
};

struct FileStatus {
    FileKind kind = FileKind::regular;
    uint64_t bytes = 0;
    uint64_t bytes_on_disk = 0;
    FileTime modified, changed;  // `changed` includes changes of name, owner and permissions
    uint64_t device = 0, inode = 0;
    uint32_t permissions = 0;
    bool belongs_to_user = false;
};

int status_of(const std::string& path, FileStatus* status);
int remove_file(const std::string& path);
// Replaces `to` if it exists.
int rename_file(const std::string& from, const std::string& to);
// Makes renames in the folder durable, where the file system can. Errors are ignored.
void sync_folder(const std::string& folder);
// Returns whether the folder is on a disk of this machine or in its memory, so that no other machine
// can open its files. False if that is unknown.
bool is_local(const std::string& folder);

// An open file. Child processes do not inherit it.
class File {
public:
    enum class Access {
        read,           // does not wait for the writer of a pipe
        write,          // creates the file; refuses symbolic links
        write_private,  // the same; only this user may read a file that is created
    };

    File() = default;
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    // Closes the file that was open before.
    int open(const std::string& path, Access access);
    int status(FileStatus* status) const;
    // Reads up to target.size() bytes; `got` is 0 only at the end of the file.
    int read(uint64_t offset, std::span<std::byte> target, size_t* got) const;
    // Writes all bytes at the current position.
    int write(std::span<const std::byte> bytes);
    // Writes all bytes at an offset. Several threads may write at once.
    int write_at(uint64_t offset, std::span<const std::byte> bytes) const;
    int resize(uint64_t bytes);
    // Allocates the space of this range on the disk.
    int reserve(uint64_t offset, uint64_t bytes);
    int sync();
    // Waits until no other process holds the lock. Returns an error on file systems without locks.
    int lock();
    int set_permissions(uint32_t permissions);
    // Sets the time of modification to now.
    int touch();

    // Map a range of the file; null if that fails. The offset is a multiple of 65536. The caller
    // passes the result to unmap(). A private map is not affected by later writes where the system
    // can prevent it; a shared map is.
    std::byte* map_private(uint64_t bytes) const;
    std::byte* map_shared(uint64_t offset, uint64_t bytes, bool writable) const;

private:
    int handle_ = -1;
};

void unmap(const std::byte* start, uint64_t bytes);

}  // namespace plait::platform
