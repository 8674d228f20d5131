// A file opened for reading. It detects that the file was changed on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "platform/file.h"

namespace plait::gguf {

class Descriptor {
public:
    // Throws ModelError if the path cannot be opened or is not a regular file. Does not block on
    // pipes and devices.
    explicit Descriptor(const std::string& path);
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    const std::string& path() const { return path_; }
    uint64_t size() const { return status_.bytes; }
    // Differs between files of this machine, and changes with the file's content, name or owner.
    std::string identity() const;
    // Returns whether both are the same file, not modified between the two calls of open.
    bool is_same_file(const Descriptor& other) const;

    // Reads target.size() bytes from `offset` on. Throws ModelError if the file is shorter or
    // cannot be read.
    void read(uint64_t offset, std::span<std::byte> target) const;

    // Throws ModelError if the size or modification time has changed since opening.
    void check_unchanged() const;

    // Maps the whole file for reading. The result is empty if the file is empty. May be called
    // once.
    std::span<const std::byte> map();

private:
    std::string path_;
    platform::File file_;
    platform::FileStatus status_;  // when it was opened
    std::span<const std::byte> mapping_;
};

}  // namespace plait::gguf
