// Files of saved states: atomic writes, and complete reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace plait {

// A buffer of fixed size with unspecified contents.
class FileBytes {
public:
    FileBytes() = default;
    explicit FileBytes(uint64_t size)
        : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
    std::span<std::byte> all() { return {data_.get(), size_}; }
    std::span<const std::byte> view() const { return {data_.get(), size_}; }

private:
    std::unique_ptr<std::byte[]> data_;
    uint64_t size_ = 0;
};

// Returns call(), and adds the path to the StateErrors that it throws.
template <typename Call>
auto with_path(const std::string& path, Call&& call) {
    try {
        return std::forward<Call>(call)();
    } catch (const StateNotFound& error) {
        throw StateNotFound(text(path.c_str(), ": ", error.what()));
    } catch (const StateError& error) {
        throw StateError(text(path.c_str(), ": ", error.what()));
    }
}

// Replaces the file at `path` atomically: readers see the old file or the new one. Writes to `path`
// + ".plait-tmp" first and renames. If a process is killed meanwhile, the next write to the same
// path removes the temporary file. Concurrent writers wait for each other. Throws StateError with
// the path and the system's message.
void write_state_file(const std::string& path, std::span<const std::byte> state);

// Reads a whole regular file. Throws StateError, with the path, if the file cannot be read, does
// not begin like a state, or differs in size from what its header states.
FileBytes read_state_file(const std::string& path);

}  // namespace plait
