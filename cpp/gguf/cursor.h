// Reads the head of a GGUF file sequentially. Every length is checked against the remaining bytes
// before memory is allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "gguf/descriptor.h"
#include "gguf/text.h"

namespace plait::gguf {

// The item being read, for error messages such as "key 7 'general.name'".
struct Field {
    std::string_view kind;  // "key", "tensor", "header"
    uint64_t index = 0;
    std::string_view name = {};

    std::string describe() const {
        if (kind == "header") return text(kind, " field ", quoted(name));
        if (name.empty()) return text(kind, " ", index);
        return text(kind, " ", index, " ", quoted(name));
    }
};

class Cursor {
public:
    // Max size of metadata and tensor directory together, about ten times that of real files. A
    // sparse file could otherwise cause arbitrarily large allocations.
    static constexpr uint64_t kMaxHeadBytes = uint64_t{128} << 20;

    explicit Cursor(const Descriptor& file)
        : file_(file), end_(std::min(file.size(), kMaxHeadBytes)) {}

    uint64_t position() const { return position_; }

    template <typename T>
    T number(const Field& field) {
        T value;
        take(field, reinterpret_cast<std::byte*>(&value), sizeof(value));
        return value;
    }

    // Reads a 64-bit length and then as many bytes.
    std::string string(const Field& field, std::string_view what) {
        const auto length = number<uint64_t>(field);
        need(field, what, length, 1);
        std::string out(length, '\0');
        take(field, reinterpret_cast<std::byte*>(out.data()), length);
        return out;
    }

    template <typename T>
    std::vector<T> numbers(const Field& field, uint64_t count) {
        need(field, "elements", count, sizeof(T));
        std::vector<T> out(count);
        take(field, reinterpret_cast<std::byte*>(out.data()), count * sizeof(T));
        return out;
    }

    // Throws unless `count` items of at least `min_bytes` each fit into the remaining bytes.
    void need(const Field& field, std::string_view what, uint64_t count, uint64_t min_bytes) const;

    [[noreturn]] void fail(const Field& field, const std::string& what) const {
        throw ModelError(text(file_.path(), ": ", field.describe(), " ", what));
    }

    [[noreturn]] void unsupported(const Field& field, const std::string& what) const {
        throw UnsupportedError(text(file_.path(), ": ", field.describe(), " ", what));
    }

private:
    void take(const Field& field, std::byte* target, uint64_t bytes);
    void refill();

    const Descriptor& file_;
    uint64_t end_;
    uint64_t position_ = 0;
    std::vector<std::byte> window_;  // buffered bytes of the file, from window_begin_ on
    uint64_t window_begin_ = 0;
};

}  // namespace plait::gguf
