// Writes GGUF files for tests, valid or with a chosen defect.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"
#include "tensor/dtype.h"

namespace plait::test {

template <typename T>
std::string raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

inline std::string raw_string(std::string_view text) {
    return raw<uint64_t>(text.size()).append(text);
}

// The parts of a file. Members are public so that tests can damage them.
struct GgufWriter {
    struct Entry {
        std::string key;
        uint32_t type;
        std::string payload;
    };
    struct Tensor {
        std::string name;
        std::vector<uint64_t> dims;  // innermost first, as stored
        uint32_t type;
        uint64_t offset;  // from the start of the data
        std::string bytes;
        std::optional<uint32_t> rank;  // written instead of dims.size()
    };

    template <typename T>
    GgufWriter& number(std::string key, gguf::ValueType type, T value) {
        entries.push_back({std::move(key), static_cast<uint32_t>(type), raw(value)});
        return *this;
    }
    GgufWriter& string(std::string key, std::string_view value) {
        entries.push_back(
            {std::move(key), static_cast<uint32_t>(gguf::ValueType::string), raw_string(value)});
        return *this;
    }
    template <typename T>
    GgufWriter& numbers(std::string key, gguf::ValueType element, const std::vector<T>& values) {
        std::string body;
        for (const T value : values) body += raw(value);
        return array(std::move(key), static_cast<uint32_t>(element), values.size(), body);
    }
    GgufWriter& strings(std::string key, const std::vector<std::string>& values) {
        std::string body;
        for (const std::string& value : values) body += raw_string(value);
        return array(std::move(key), static_cast<uint32_t>(gguf::ValueType::string), values.size(),
                     body);
    }
    GgufWriter& array(std::string key, uint32_t element, uint64_t count, std::string_view body) {
        entries.push_back({std::move(key), static_cast<uint32_t>(gguf::ValueType::array),
                           (raw(element) + raw(count)).append(body)});
        return *this;
    }
    // Placed after the previous tensors, aligned.
    GgufWriter& tensor(std::string name, std::vector<uint64_t> dims, DType type,
                       std::string bytes) {
        uint64_t offset = 0;
        for (const Tensor& t : tensors) offset = padded(t.offset + t.bytes.size());
        tensors.push_back({std::move(name), std::move(dims), info(type).gguf_id, offset,
                           std::move(bytes), std::nullopt});
        return *this;
    }

    uint64_t padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }

    // All bytes before the tensor data, unpadded.
    std::string head() const {
        std::string out = magic + raw(version) + raw(tensor_count.value_or(tensors.size())) +
                          raw(entry_count.value_or(entries.size()));
        for (const Entry& e : entries) out += raw_string(e.key) + raw(e.type) + e.payload;
        for (const Tensor& t : tensors) {
            out += raw_string(t.name);
            out += raw(t.rank.value_or(static_cast<uint32_t>(t.dims.size())));
            for (const uint64_t dim : t.dims) out += raw(dim);
            out += raw(t.type) + raw(t.offset);
        }
        return out;
    }
    std::string bytes() const {
        std::string out = head();
        if (tensors.empty()) return out;
        const uint64_t data = padded(out.size());
        for (const Tensor& t : tensors) {
            // A tensor without bytes is not written, regardless of its offset.
            if (t.bytes.empty()) continue;
            const uint64_t end = data + t.offset + t.bytes.size();
            if (out.size() < end) out.resize(end);
            out.replace(data + t.offset, t.bytes.size(), t.bytes);
        }
        return out;
    }

    std::string magic = "GGUF";
    uint32_t version = 3;
    uint64_t alignment = 32;  // of the layout; tests add the key if they need it
    std::optional<uint64_t> tensor_count, entry_count;  // written instead of the real counts
    std::vector<Entry> entries;
    std::vector<Tensor> tensors;
};

// A temporary folder, removed at the end.
class TempFolder {
public:
    TempFolder() {
        std::random_device random;
        path_ = std::filesystem::temp_directory_path() /
                ("plait-" + std::to_string(random()) + "-" + std::to_string(random()));
        std::filesystem::create_directory(path_);
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    std::string file(const std::string& name) const { return (path_ / name).string(); }

    // Always creates a new file; an open one of the same name is unaffected.
    std::string write(const std::string& name, std::string_view bytes) const {
        std::filesystem::remove(path_ / name);
        std::ofstream out(path_ / name, std::ios::binary);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!out.flush()) throw std::runtime_error("cannot write " + file(name));
        return file(name);
    }

private:
    std::filesystem::path path_;
};

}  // namespace plait::test
