// Reads GGUF files of versions 2 and 3, little endian: metadata, tensor directory and tensor data.
// Opening a file throws ModelError if it is damaged or not a GGUF file, and UnsupportedError if it
// is valid but uses an unsupported element type or nested arrays.
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
    TensorType type;      // shape outermost first, the reverse of the file's order
    uint64_t offset = 0;  // in bytes, from the start of its file
    uint64_t bytes = 0;
    uint32_t shard = 0;  // index of its file in a split model
};

struct OpenOptions {
    // Maps the files instead of copying from them. If a mapped file is truncated, the next access
    // kills the process (SIGBUS); without mapping it raises ModelError.
    bool mmap = false;
};

// Immutable and thread-safe. The files stay open, so a file that is renamed, replaced or deleted
// after open() is still readable.
class File {
public:
    // For a split model (name-00001-of-00003.gguf), `path` is the first file. The other files are
    // opened too; the metadata is that of the first.
    static std::shared_ptr<const File> open(const std::string& path, OpenOptions options = {});
    ~File();

    const std::string& path() const;
    const Metadata& metadata() const { return metadata_; }
    std::span<const TensorInfo> tensors() const { return tensors_; }  // in file order
    const TensorInfo* find(std::string_view name) const;
    uint64_t total_bytes() const;  // of all tensors
    // Differs between files of this machine, and changes when one of the files does.
    std::string identity() const;
    // Returns whether both have the same files, not modified between the two calls of open(). Ignores
    // changes of names, owners and permissions.
    bool has_same_files(const File& other) const;

    // Copies bytes [begin_byte, begin_byte + target.size()) of the tensor. Throws ModelError if the
    // file's size or modification time has changed since open().
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
