// A file with the packed matrices of a model. Processes map it, so the first one packs a matrix, and
// all of them, also later ones, share its memory.
//
// The file begins with one byte per weight, which is 1 once the weight's matrix is complete. The
// matrices follow. A matrix takes space on the disk only once it is packed. Processes may pack the
// same matrix at the same time, because they write the same bytes.
//
// Names of files contain the identity of the model file, the instruction set, the library that
// packed it, and the boot of the machine: after a crash, the system may have written the byte of a
// weight but not its matrix. Files of earlier boots are deleted. Where machines share a folder, each
// deletes only files of its own, and those of other boots after 30 days without use, because
// containers of one image have the same identity: on a network file system, deleting a file that a
// process of another machine has mapped ends that process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/file.h"

namespace plait {

class PackedFile {
public:
    // All files of a machine in a folder together; the least recently opened ones are deleted first.
    static constexpr uint64_t kMaxFolderBytes = uint64_t{32} << 30;

    // Opens the file of `identity`, or creates it and the folder. bytes[i] is the size of matrix i.
    // Returns null and logs the reason if the system refuses, or if the matrices would take more
    // than kMaxFolderBytes or half of the free space of the disk. `is_local`: no other machine can
    // open files of the folder.
    static std::unique_ptr<PackedFile> open(const std::string& folder, const std::string& identity,
                                            std::span<const uint64_t> bytes, bool is_local);
    ~PackedFile();
    PackedFile(const PackedFile&) = delete;
    PackedFile& operator=(const PackedFile&) = delete;

    // Returns a complete matrix, or null. Valid as long as this object, also if the file is deleted.
    const std::byte* find(size_t i) const;

    // Writes bytes at an offset from the start of a matrix. Throws std::system_error. Ranges that
    // begin at multiples of a huge page and have its size let the system keep the file in huge pages
    // (docs/decisions/0055).
    using WriteAt = std::function<void(uint64_t offset, std::span<const std::byte> bytes)>;
    // Lets `write` write all of matrix i, in parts, from any thread, then completes it. Returns the
    // matrix, or null if the disk has no space or refuses a write.
    const std::byte* fill(size_t i, const std::function<void(const WriteAt&)>& write);

private:
    struct Region {
        uint64_t begin, bytes;
    };
    PackedFile() = default;
    bool map(const std::string& path);

    uint64_t table_bytes() const { return regions_.empty() ? 1 : regions_.size(); }

    platform::File file_;
    std::vector<Region> regions_;
    uint64_t size_ = 0;
    std::byte* table_ = nullptr;       // writable
    const std::byte* data_ = nullptr;  // the whole file, read-only
};

}  // namespace plait
