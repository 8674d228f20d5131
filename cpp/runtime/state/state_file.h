// Files that are written as a whole or not at all.
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

// The file at `path` is the old one or the new one at any moment, and the new one once this
// returns. Bytes go to `path` + ".plait-tmp" first: what a process that was killed leaves of it the
// next one that writes to the path takes away. Several may write at once; they wait for each other.
// StateError says what the system said, and leaves it to the caller to name the file.
void write_file(const std::string& path, std::span<const std::byte> bytes);

// The whole of a regular file. `expected_bytes` is shown its first `n_first` bytes (fewer where it
// has fewer) and says how long it must be. StateError.
FileBytes read_file(const std::string& path, size_t n_first,
                    const std::function<uint64_t(std::span<const std::byte>)>& expected_bytes);

}  // namespace plait
