// Atomic writes of whole files, and reads of whole files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace plait {

struct FileBytes {
    std::unique_ptr<std::byte[]> data;
    size_t size = 0;
    std::span<const std::byte> view() const { return {data.get(), size}; }
};

// Replaces the file at `path` atomically: readers see the old file or the new one. Writes to `path`
// + ".plait-tmp" first and renames. If a process is killed meanwhile, the next write to the same
// path removes the temporary file. Concurrent writers wait for each other. Throws StateError with
// the system's message but without the path, which the caller adds.
void write_file(const std::string& path, std::span<const std::byte> bytes);

// Reads a whole regular file. `expected_bytes` receives its first `n_first` bytes, or all if it has
// fewer, and returns the expected size. Throws StateError if the size differs or the file cannot be
// read.
FileBytes read_file(const std::string& path, size_t n_first,
                    const std::function<uint64_t(std::span<const std::byte>)>& expected_bytes);

}  // namespace plait
