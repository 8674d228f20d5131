#include "gguf/head.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "gguf/cursor.h"
#include "gguf/keys.h"

namespace plait::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as stored");

constexpr uint32_t kMagic = 0x46554747;         // "GGUF"
constexpr uint32_t kMagicSwapped = 0x47475546;  // "FUGG"
constexpr uint32_t kDefaultAlignment = 32;
constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxTensorNameBytes = 63;  // ggml keeps 64 bytes with the final NUL

// Min size of an entry: its lengths and numbers, with empty strings.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// The format demands ASCII of keys, and all writers use it for tensor names. Enforcing it keeps
// control characters and invalid UTF-8 out of all code that prints or compares names.
void check_name(const Cursor& cursor, const Field& field, size_t max_bytes) {
    if (field.name.size() > max_bytes) {
        cursor.fail(field, text("has a name of ", field.name.size(), " bytes, expected at most ",
                                max_bytes));
    }
    const auto printable = [](char c) { return c >= 0x20 && c < 0x7F; };
    if (!std::ranges::all_of(field.name, printable)) {
        cursor.fail(field, "has a name that is not printable ASCII");
    }
}

struct Counts {
    uint64_t tensors, entries;
};

Counts read_preamble(Cursor& cursor) {
    const auto magic = cursor.number<uint32_t>({"header", 0, "magic"});
    if (magic == kMagicSwapped) {
        cursor.fail({"header", 0, "magic"}, "is that of a big-endian file, expected little endian");
    }
    if (magic != kMagic) cursor.fail({"header", 0, "magic"}, "is not that of a GGUF file");
    const Field version{"header", 0, "version"};
    const auto number = cursor.number<uint32_t>(version);
    if (number != 2 && number != 3) {
        const bool swapped = (number & 0xFFFF) == 0 && number != 0;
        cursor.fail(version, text("is ", number, ", expected 2 or 3",
                                  swapped ? " (a big-endian file?)" : ""));
    }
    const Field tensors{"header", 0, "tensor_count"}, entries{"header", 0, "metadata_kv_count"};
    Counts counts{};
    counts.tensors = cursor.number<uint64_t>(tensors);
    counts.entries = cursor.number<uint64_t>(entries);
    cursor.need(tensors, "tensors", counts.tensors, kMinTensorBytes);
    cursor.need(entries, "keys", counts.entries, kMinEntryBytes);
    return counts;
}

ValueType read_type(Cursor& cursor, const Field& field, std::string_view what) {
    const auto number = cursor.number<uint32_t>(field);
    if (number > static_cast<uint32_t>(ValueType::f64)) {
        cursor.fail(field, text("has ", what, " ", number, ", expected 0 to 12"));
    }
    return static_cast<ValueType>(number);
}

void check_boolean(Cursor& cursor, const Field& field, uint8_t byte) {
    if (byte > 1) cursor.fail(field, text("holds ", int{byte}, " as a boolean, expected 0 or 1"));
}

std::vector<std::string> read_strings(Cursor& cursor, const Field& field, uint64_t count) {
    cursor.need(field, "strings", count, sizeof(uint64_t));
    std::vector<std::string> out;
    for (uint64_t i = 0; i < count; ++i) {
        out.push_back(cursor.string(field, "bytes of a string"));
    }
    return out;
}

Array::Data read_elements(Cursor& cursor, const Field& field, ValueType element, uint64_t count) {
    switch (element) {
    case ValueType::u8: return cursor.numbers<uint8_t>(field, count);
    case ValueType::i8: return cursor.numbers<int8_t>(field, count);
    case ValueType::u16: return cursor.numbers<uint16_t>(field, count);
    case ValueType::i16: return cursor.numbers<int16_t>(field, count);
    case ValueType::u32: return cursor.numbers<uint32_t>(field, count);
    case ValueType::i32: return cursor.numbers<int32_t>(field, count);
    case ValueType::f32: return cursor.numbers<float>(field, count);
    case ValueType::u64: return cursor.numbers<uint64_t>(field, count);
    case ValueType::i64: return cursor.numbers<int64_t>(field, count);
    case ValueType::f64: return cursor.numbers<double>(field, count);
    case ValueType::string: return read_strings(cursor, field, count);
    case ValueType::boolean: {
        auto bytes = cursor.numbers<uint8_t>(field, count);
        for (const uint8_t byte : bytes) check_boolean(cursor, field, byte);
        return bytes;
    }
    case ValueType::array: break;
    }
    cursor.unsupported(field, "holds an array of arrays, which is not supported");
}

Value::Data read_value(Cursor& cursor, const Field& field, ValueType type) {
    switch (type) {
    case ValueType::u8: return cursor.number<uint8_t>(field);
    case ValueType::i8: return cursor.number<int8_t>(field);
    case ValueType::u16: return cursor.number<uint16_t>(field);
    case ValueType::i16: return cursor.number<int16_t>(field);
    case ValueType::u32: return cursor.number<uint32_t>(field);
    case ValueType::i32: return cursor.number<int32_t>(field);
    case ValueType::f32: return cursor.number<float>(field);
    case ValueType::u64: return cursor.number<uint64_t>(field);
    case ValueType::i64: return cursor.number<int64_t>(field);
    case ValueType::f64: return cursor.number<double>(field);
    case ValueType::string: return cursor.string(field, "bytes of a string");
    case ValueType::boolean: {
        const auto byte = cursor.number<uint8_t>(field);
        check_boolean(cursor, field, byte);
        return byte == 1;
    }
    case ValueType::array: break;
    }
    const ValueType element = read_type(cursor, field, "element type");
    const auto count = cursor.number<uint64_t>(field);
    return Array{element, read_elements(cursor, field, element, count)};
}

std::vector<Entry> read_entries(Cursor& cursor, uint64_t count) {
    std::vector<Entry> entries;  // not reserved: `count` is not trustworthy
    for (uint64_t i = 0; i < count; ++i) {
        std::string key = cursor.string({"key", i}, "bytes of a name");
        if (key.empty()) cursor.fail({"key", i}, "has no name");
        const Field field{"key", i, key};
        check_name(cursor, field, kMaxKeyBytes);
        const ValueType type = read_type(cursor, field, "value type");
        Value::Data value = read_value(cursor, field, type);
        entries.push_back({std::move(key), Value(std::move(value))});
    }
    return entries;
}

uint32_t alignment_of(const std::string& path, const Metadata& metadata) {
    const Value* value = metadata.find(keys::kAlignment);
    if (!value) return kDefaultAlignment;
    const auto* held = std::get_if<uint32_t>(&value->data());
    if (!held) {
        throw ModelError(text(path, ": key ", quoted(keys::kAlignment), " holds ",
                              value->type_name(), ", expected u32"));
    }
    // The format demands a multiple of 8; all writers pad offsets to powers of two.
    if (*held < 8 || !std::has_single_bit(*held)) {
        throw ModelError(text(path, ": key ", quoted(keys::kAlignment), " is ", *held,
                              ", expected a power of two from 8"));
    }
    return *held;
}

// Names of the types in enum ggml_type that are not supported; empty for numbers that are not in
// use.
std::string_view unsupported_type_name(uint32_t id) {
    constexpr std::array kUnsupported = {
        std::pair{9u, "Q8_1"}, std::pair{15u, "Q8_K"}, std::pair{24u, "I8"},
        std::pair{25u, "I16"}, std::pair{27u, "I64"},  std::pair{28u, "F64"},
    };
    const auto found =
        std::ranges::find(kUnsupported, id, [](const auto& pair) { return pair.first; });
    return found == kUnsupported.end() ? std::string_view{} : found->second;
}

DType read_dtype(Cursor& cursor, const Field& field) {
    const auto id = cursor.number<uint32_t>(field);
    if (const auto dtype = dtype_from_gguf(id)) return *dtype;
    const std::string_view name = unsupported_type_name(id);
    if (name.empty()) cursor.fail(field, text("has element type ", id, ", which does not exist"));
    cursor.unsupported(field,
                       text("has element type ", name, " (", id, "), which is not supported"));
}

// Files store the innermost dimension first; this function alone reverses the order.
Shape read_shape(Cursor& cursor, const Field& field) {
    const auto rank = cursor.number<uint32_t>(field);
    if (rank < 1 || rank > Shape::kMaxRank) {
        cursor.fail(field, text("has ", rank, " dimensions, expected 1 to ", Shape::kMaxRank));
    }
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    Shape shape;
    shape.rank = static_cast<uint8_t>(rank);
    for (uint32_t i = 0; i < rank; ++i) {
        const auto size = cursor.number<uint64_t>(field);
        if (size < 1 || size > kMax) {
            cursor.fail(field, text("has dimension ", i, " of ", size, ", expected 1 to ", kMax));
        }
        shape.dims[rank - 1 - i] = static_cast<int64_t>(size);
    }
    return shape;
}

uint64_t checked_bytes(Cursor& cursor, const Field& field, const TensorType& type) {
    const DTypeInfo& dtype = info(type.dtype);
    const auto row = static_cast<uint64_t>(type.shape[-1]);
    if (row % dtype.block_elements != 0) {
        cursor.fail(field, text("has rows of ", row, " elements, expected a multiple of ",
                                dtype.block_elements, " for ", dtype.name));
    }
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    std::optional<uint64_t> elements = 1;
    for (int axis = 0; axis < type.shape.rank && elements; ++axis) {
        elements = checked_mul(*elements, static_cast<uint64_t>(type.shape[axis]));
    }
    const auto bytes =
        elements ? checked_mul(*elements / dtype.block_elements, dtype.block_bytes) : elements;
    if (!bytes || *elements > kMax || *bytes > kMax) {
        cursor.fail(field, text("has shape ", to_string(type.shape), ", whose size overflows"));
    }
    return *bytes;
}

std::vector<TensorInfo> read_tensors(Cursor& cursor, uint64_t count) {
    std::vector<TensorInfo> tensors;
    for (uint64_t i = 0; i < count; ++i) {
        TensorInfo tensor;
        tensor.name = cursor.string({"tensor", i}, "bytes of a name");
        if (tensor.name.empty()) cursor.fail({"tensor", i}, "has no name");
        const Field field{"tensor", i, tensor.name};
        check_name(cursor, field, kMaxTensorNameBytes);
        tensor.type.shape = read_shape(cursor, field);
        tensor.type.dtype = read_dtype(cursor, field);
        tensor.bytes = checked_bytes(cursor, field, tensor.type);
        tensor.offset = cursor.number<uint64_t>(field);
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

// The bytes between the tensor directory and the data are zeros
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Others are a part of the directory:
// with a smaller count, all data would be read from a wrong place.
void check_padding(Cursor& cursor, size_t n_tensors, uint32_t alignment, uint64_t file_bytes) {
    const Field field{"header", 0, "tensor_count"};
    const uint64_t end =
        std::min(checked_align(cursor.position(), std::min(alignment, 64u)).value(), file_bytes);
    while (cursor.position() < end)
        if (cursor.number<uint8_t>(field) != 0)
            cursor.fail(field,
                        text("is ", n_tensors,
                             ", but more bytes follow the entry of the last tensor, expected "
                             "zeros: the count is too small or the file is damaged"));
}

// Turns offsets from the start of the data into offsets from the start of the file.
void place_tensors(Cursor& cursor, std::vector<TensorInfo>& tensors, uint32_t alignment,
                   uint64_t file_bytes) {
    const uint64_t data = checked_align(cursor.position(), alignment).value();  // both are small
    check_padding(cursor, tensors.size(), alignment, file_bytes);
    for (size_t i = 0; i < tensors.size(); ++i) {
        TensorInfo& tensor = tensors[i];
        const Field field{"tensor", i, tensor.name};
        if (tensor.offset % alignment != 0) {
            cursor.fail(field,
                        text("has offset ", tensor.offset, ", expected a multiple of ", alignment));
        }
        const auto begin = checked_add(data, tensor.offset);
        const auto end = begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
        if (!end || *end > file_bytes) {
            cursor.fail(field, text("has ", tensor.bytes, " bytes at offset ", tensor.offset,
                                    ", beyond the end of the file (data begins at ", data,
                                    ", file size ", file_bytes, ")"));
        }
        tensor.offset = *begin;
    }
}

void check_apart(const std::string& path, const std::vector<TensorInfo>& tensors) {
    std::vector<const TensorInfo*> in_place;
    in_place.reserve(tensors.size());
    for (const TensorInfo& tensor : tensors) in_place.push_back(&tensor);
    std::ranges::sort(in_place, {}, &TensorInfo::offset);
    for (size_t i = 1; i < in_place.size(); ++i) {
        const TensorInfo &before = *in_place[i - 1], &after = *in_place[i];
        if (before.offset + before.bytes <= after.offset) continue;
        throw ModelError(text(path, ": tensors ", quoted(before.name), " and ", quoted(after.name),
                              " overlap in the file at byte ", after.offset));
    }
}

}  // namespace

Head read_head(const Descriptor& file) {
    Cursor cursor(file);
    const Counts counts = read_preamble(cursor);
    Head head;
    head.metadata = Metadata(file.path(), read_entries(cursor, counts.entries));
    const uint32_t alignment = alignment_of(file.path(), head.metadata);
    cursor.need({"header", 0, "tensor_count"}, "tensors", counts.tensors, kMinTensorBytes);
    head.tensors = read_tensors(cursor, counts.tensors);
    place_tensors(cursor, head.tensors, alignment, file.size());
    check_apart(file.path(), head.tensors);
    return head;
}

}  // namespace plait::gguf
