// The key-value pairs of a GGUF file. Getters check the type and convert only if the value is kept
// exactly. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gguf/name_index.h"

namespace plait::gguf {

// The numbers of gguf_metadata_value_type.
enum class ValueType : uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
};

std::string_view to_string(ValueType type);  // "u8", "string", ...

struct Array {
    // Booleans are stored as bytes 0 and 1; `element` distinguishes them from u8.
    using Data = std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
                              std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
                              std::vector<float>, std::vector<std::string>, std::vector<uint64_t>,
                              std::vector<int64_t>, std::vector<double>>;
    size_t size() const;

    ValueType element = ValueType::u8;
    Data data;
};

class Value {
public:
    // In the order of ValueType.
    using Data = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                              std::string, Array, uint64_t, int64_t, double>;

    explicit Value(Data data) : data_(std::move(data)) {}

    ValueType type() const { return static_cast<ValueType>(data_.index()); }
    std::string type_name() const;  // "u32", "array of string"
    bool is_array() const { return type() == ValueType::array; }
    const Data& data() const { return data_; }

private:
    Data data_;
};

struct Entry {
    std::string key;
    Value value;
};

// All getters throw ModelError with the file and the key if the value has another type, or if the
// key is absent and there is no fallback. integer() accepts every integer type if the value fits
// into int64_t; real() accepts f32 and f64. Integers are not accepted as real numbers, nor booleans
// as integers.
class Metadata {
public:
    Metadata() = default;
    // Throws ModelError if two entries have the same key. `origin` is the file named in errors.
    Metadata(std::string origin, std::vector<Entry> entries);

    bool has(std::string_view key) const { return find(key) != nullptr; }
    const Value* find(std::string_view key) const;
    const Value& at(std::string_view key) const;

    int64_t integer(std::string_view key) const;
    int64_t integer(std::string_view key, int64_t fallback) const;
    double real(std::string_view key) const;
    double real(std::string_view key, double fallback) const;
    bool boolean(std::string_view key) const;
    bool boolean(std::string_view key, bool fallback) const;
    const std::string& string(std::string_view key) const;
    std::string string(std::string_view key, std::string_view fallback) const;

    // Getters of arrays. Spans are valid as long as this object.
    std::vector<int64_t> integers(std::string_view key) const;
    std::vector<float> reals(std::string_view key) const;
    std::vector<bool> booleans(std::string_view key) const;
    std::span<const std::string> strings(std::string_view key) const;

    size_t size() const { return entries_.size(); }
    std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
    std::vector<Entry>::const_iterator end() const { return entries_.end(); }

private:
    const Array& array(std::string_view key, std::string_view expected) const;

    std::string origin_;
    std::vector<Entry> entries_;  // in file order
    NameIndex index_;
};

}  // namespace plait::gguf
