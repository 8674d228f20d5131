// An open regular file that notices when it changes.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace plait::gguf {

class Descriptor {
public:
    // Throws ModelError, naming the path, for what cannot be opened or is not a regular file: a
    // pipe, a device or a folder must neither hang nor be read as a model.
    explicit Descriptor(const std::string& path);
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    const std::string& path() const { return path_; }
    uint64_t size() const { return size_; }

    // Fills `target` from `offset`; ModelError when the file ends before that or cannot be read.
    void read(uint64_t offset, std::span<std::byte> target) const;

    // Throws ModelError when size or modification time differ from those at opening.
    void check_unchanged() const;

    // Maps the whole file for reading; empty when it has no bytes. Once.
    std::span<const std::byte> map();

private:
    std::string path_;
    int fd_;
    uint64_t size_ = 0;
    timespec modified_{};
    std::span<const std::byte> mapping_;
};

}  // namespace plait::gguf
