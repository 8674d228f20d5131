// A GGUF file, versions 2 and 3, little endian: metadata, tensor directory, and reads of tensor bytes.
// Whatever the bytes say, opening either succeeds or throws ModelError (not what it claims to be) or
// UnsupportedError (a sound file that uses an element type or a nesting we do not read).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"
#include "gguf/name_index.h"
#include "tensor/tensor.h"

namespace plait::gguf {

struct TensorInfo {
    std::string name;
    TensorType type;      // shape outermost first: the file's order, reversed
    uint64_t offset = 0;  // of the first byte, from the start of its file
    uint64_t bytes = 0;
    uint32_t shard = 0;  // which file of a split model
};

struct OpenOptions {
    // Maps the files instead of copying from them. A mapped file that someone truncates kills the
    // process (SIGBUS) at the next access; without mapping it is a ModelError.
    bool mmap = false;
};

// Immutable and safe to use from several threads. Keeps its files open: one that is renamed,
// replaced or unlinked after open() is still read as it was.
class File {
public:
    // Of a split model (name-00001-of-00003.gguf) `path` is the first file; its siblings are opened
    // too, and the metadata is that of the first.
    static std::shared_ptr<const File> open(const std::string& path, OpenOptions options = {});
    ~File();

    const std::string& path() const;
    const Metadata& metadata() const { return metadata_; }
    std::span<const TensorInfo> tensors() const { return tensors_; }  // in file order
    const TensorInfo* find(std::string_view name) const;
    uint64_t total_bytes() const;  // of all tensors

    // Copies bytes [begin_byte, begin_byte + target.size()) of the tensor. Throws ModelError when
    // the file's size or modification time is no longer what it was at open().
    void read(const TensorInfo& tensor, uint64_t begin_byte, std::span<std::byte> target) const;

    // The tensor's bytes in the mapped file; empty unless opened with mmap.
    std::span<const std::byte> mapped(const TensorInfo& tensor) const;

private:
    struct Shard;
    File();
    void open_siblings(OpenOptions options);
    void index_tensors();

    std::vector<std::unique_ptr<const Shard>> shards_;
    Metadata metadata_;
    std::vector<TensorInfo> tensors_;
    NameIndex index_;
};

}  // namespace plait::gguf
