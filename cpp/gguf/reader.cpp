#include "gguf/reader.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "gguf/descriptor.h"
#include "gguf/head.h"
#include "gguf/keys.h"
#include "gguf/text.h"

namespace plait::gguf {

struct File::Shard {
    Shard(const std::string& path, OpenOptions options) : file(path) {
        if (options.mmap) mapping = file.map();
    }

    Descriptor file;
    std::span<const std::byte> mapping;
};

namespace {

constexpr int64_t kMaxShards = 65535;  // split.count is usually a u16

// "-00001-of-00003.gguf"
std::string shard_suffix(int64_t number, int64_t count) {
    const auto five_digits = [](int64_t n) {
        const std::string digits = std::to_string(n);  // at most kMaxShards
        return std::string(5 - digits.size(), '0') + digits;
    };
    return text("-", five_digits(number), "-of-", five_digits(count), ".gguf");
}

[[noreturn]] void fail_key(const std::string& path, std::string_view key, const std::string& what) {
    throw ModelError(text(path, ": key ", quoted(key), " ", what));
}

int64_t shard_count(const std::string& path, const Metadata& metadata) {
    const int64_t count = metadata.integer(keys::kSplitCount, 1);
    if (count < 0 || count > kMaxShards) {
        fail_key(path, keys::kSplitCount, text("is ", count, ", expected 1 to ", kMaxShards));
    }
    return std::max<int64_t>(count, 1);  // some writers store 0 if there is one file
}

void check_shard(const std::string& path, const Metadata& metadata, int64_t number, int64_t count) {
    const int64_t stated_count = shard_count(path, metadata);
    if (stated_count != count) {
        fail_key(path, keys::kSplitCount, text("is ", stated_count, ", expected ", count));
    }
    const int64_t stated_number = metadata.integer(keys::kSplitNumber, 0);
    if (stated_number != number) {
        fail_key(path, keys::kSplitNumber,
                 text("is ", stated_number, ", expected ", number,
                      number == 0 ? ": open the first file of a split model" : ""));
    }
}

}  // namespace

File::File() = default;
File::~File() = default;

std::shared_ptr<const File> File::open(const std::string& path, OpenOptions options) {
    std::shared_ptr<File> file(new File);
    file->shards_.push_back(std::make_unique<const Shard>(path, options));
    Head head = read_head(file->shards_.front()->file);
    file->metadata_ = std::move(head.metadata);
    file->tensors_ = std::move(head.tensors);
    file->open_siblings(options);
    file->index_tensors();
    for (const auto& shard : file->shards_) shard->file.check_unchanged();
    return file;
}

void File::open_siblings(OpenOptions options) {
    const int64_t count = shard_count(path(), metadata_);
    check_shard(path(), metadata_, 0, count);
    if (count == 1) return;
    const std::string first = shard_suffix(1, count);
    if (!path().ends_with(first)) {
        fail_key(path(), keys::kSplitCount,
                 text("is ", count, ", so the file's name must end in ", first));
    }
    const std::string stem = path().substr(0, path().size() - first.size());
    for (int64_t number = 1; number < count; ++number) {
        const std::string sibling = stem + shard_suffix(number + 1, count);
        shards_.push_back(std::make_unique<const Shard>(sibling, options));
        Head head = read_head(shards_.back()->file);
        check_shard(sibling, head.metadata, number, count);
        for (TensorInfo& tensor : head.tensors) {
            tensor.shard = static_cast<uint32_t>(number);
            tensors_.push_back(std::move(tensor));
        }
    }
    const auto found = static_cast<int64_t>(tensors_.size());
    const int64_t expected = metadata_.integer(keys::kSplitTensors, found);
    if (found != expected) {
        fail_key(path(), keys::kSplitTensors,
                 text("is ", expected, ", but the files hold ", found, " tensors"));
    }
}

void File::index_tensors() {
    const auto name_of = [this](uint64_t i) { return std::string_view(tensors_[i].name); };
    index_.build(tensors_.size(), name_of);
    if (const auto second = index_.duplicate(name_of)) {
        const TensorInfo& tensor = tensors_[*second];
        throw ModelError(text(shards_[tensor.shard]->file.path(), ": tensor ", quoted(tensor.name),
                              " appears again as tensor ", *second));
    }
}

const std::string& File::path() const { return shards_.front()->file.path(); }

const TensorInfo* File::find(std::string_view name) const {
    const auto found =
        index_.find(name, [this](uint64_t i) { return std::string_view(tensors_[i].name); });
    return found ? &tensors_[*found] : nullptr;
}

uint64_t File::total_bytes() const {
    uint64_t total = 0;
    for (const TensorInfo& tensor : tensors_) total += tensor.bytes;
    return total;
}

std::string File::identity() const {
    std::string all;
    for (const auto& shard : shards_) all += shard->file.identity() + ' ';
    return all;
}

bool File::has_same_files(const File& other) const {
    return std::ranges::equal(shards_, other.shards_, [](const auto& one, const auto& another) {
        return one->file.is_same_file(another->file);
    });
}

void File::read(const TensorInfo& tensor, uint64_t begin_byte, std::span<std::byte> target) const {
    const auto end = checked_add(begin_byte, target.size());
    PLAIT_CHECK(tensor.shard < shards_.size() && end && *end <= tensor.bytes);
    const Shard& shard = *shards_[tensor.shard];
    shard.file.check_unchanged();
    if (shard.mapping.empty()) {
        shard.file.read(tensor.offset + begin_byte, target);
    } else if (!target.empty()) {
        std::memcpy(target.data(), shard.mapping.data() + tensor.offset + begin_byte,
                    target.size());
    }
}

std::span<const std::byte> File::mapped(const TensorInfo& tensor) const {
    PLAIT_CHECK(tensor.shard < shards_.size());
    const std::span<const std::byte> mapping = shards_[tensor.shard]->mapping;
    return mapping.empty() ? mapping : mapping.subspan(tensor.offset, tensor.bytes);
}

}  // namespace plait::gguf
