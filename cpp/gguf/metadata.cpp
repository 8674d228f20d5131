#include "gguf/metadata.h"

#include <array>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/text.h"
#include "gguf/text.h"

namespace plait::gguf {
namespace {

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

[[noreturn]] void fail(const std::string& origin, std::string_view key, const std::string& what) {
    throw ModelError(text(origin, ": key ", quoted(key), " ", what));
}

[[noreturn]] void fail_type(const std::string& origin, std::string_view key, const Value& value,
                            std::string_view expected) {
    fail(origin, key, text("holds ", value.type_name(), ", expected ", expected));
}

template <typename T>
int64_t to_i64(const std::string& origin, std::string_view key, T number) {
    if constexpr (std::is_same_v<T, uint64_t>) {
        constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
        if (number > kMax) {
            fail(origin, key, text("is ", number, ", expected at most ", kMax));
        }
    }
    return static_cast<int64_t>(number);
}

int64_t integer_of(const std::string& origin, std::string_view key, const Value& value) {
    return std::visit(
        [&](const auto& held) -> int64_t {
            using T = std::decay_t<decltype(held)>;
            if constexpr (kIsInteger<T>) return to_i64(origin, key, held);
            fail_type(origin, key, value, "an integer");
        },
        value.data());
}

double real_of(const std::string& origin, std::string_view key, const Value& value) {
    return std::visit(
        [&](const auto& held) -> double {
            if constexpr (std::is_floating_point_v<std::decay_t<decltype(held)>>) return held;
            fail_type(origin, key, value, "a real number");
        },
        value.data());
}

bool boolean_of(const std::string& origin, std::string_view key, const Value& value) {
    if (const bool* held = std::get_if<bool>(&value.data())) return *held;
    fail_type(origin, key, value, "a boolean");
}

const std::string& string_of(const std::string& origin, std::string_view key, const Value& value) {
    if (const auto* held = std::get_if<std::string>(&value.data())) return *held;
    fail_type(origin, key, value, "a string");
}

}  // namespace

std::string_view to_string(ValueType type) {
    constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",     "i16",    "u32",
                                                         "i32", "f32", "boolean", "string", "array",
                                                         "u64", "i64", "f64"};
    const auto place = static_cast<size_t>(type);
    PLAIT_CHECK(place < kNames.size());
    return kNames[place];
}

size_t Array::size() const {
    return std::visit([](const auto& elements) { return elements.size(); }, data);
}

std::string Value::type_name() const {
    if (const auto* array = std::get_if<Array>(&data_))
        return text("array of ", to_string(array->element));
    return std::string(to_string(type()));
}

Metadata::Metadata(std::string origin, std::vector<Entry> entries)
    : origin_(std::move(origin)), entries_(std::move(entries)) {
    const auto key_of = [this](uint64_t i) { return std::string_view(entries_[i].key); };
    index_.build(entries_.size(), key_of);
    if (const auto second = index_.duplicate(key_of)) {
        fail(origin_, key_of(*second), text("appears again as key ", *second));
    }
}

const Value* Metadata::find(std::string_view key) const {
    const auto found =
        index_.find(key, [this](uint64_t i) { return std::string_view(entries_[i].key); });
    return found ? &entries_[*found].value : nullptr;
}

const Value& Metadata::at(std::string_view key) const {
    const Value* value = find(key);
    if (!value) fail(origin_, key, "is missing");
    return *value;
}

int64_t Metadata::integer(std::string_view key) const { return integer_of(origin_, key, at(key)); }

int64_t Metadata::integer(std::string_view key, int64_t fallback) const {
    const Value* value = find(key);
    return value ? integer_of(origin_, key, *value) : fallback;
}

double Metadata::real(std::string_view key) const { return real_of(origin_, key, at(key)); }

double Metadata::real(std::string_view key, double fallback) const {
    const Value* value = find(key);
    return value ? real_of(origin_, key, *value) : fallback;
}

bool Metadata::boolean(std::string_view key) const { return boolean_of(origin_, key, at(key)); }

bool Metadata::boolean(std::string_view key, bool fallback) const {
    const Value* value = find(key);
    return value ? boolean_of(origin_, key, *value) : fallback;
}

const std::string& Metadata::string(std::string_view key) const {
    return string_of(origin_, key, at(key));
}

std::string Metadata::string(std::string_view key, std::string_view fallback) const {
    if (const Value* value = find(key)) return string_of(origin_, key, *value);
    return std::string(fallback);
}

const Array& Metadata::array(std::string_view key, std::string_view expected) const {
    const Value& value = at(key);
    if (const auto* held = std::get_if<Array>(&value.data())) return *held;
    fail_type(origin_, key, value, expected);
}

std::vector<int64_t> Metadata::integers(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of integers";
    const Array& held = array(key, kExpected);
    return std::visit(
        [&](const auto& elements) -> std::vector<int64_t> {
            using T = typename std::decay_t<decltype(elements)>::value_type;
            if constexpr (kIsInteger<T>) {
                if (held.element != ValueType::boolean) {
                    std::vector<int64_t> out;
                    out.reserve(elements.size());
                    for (const T element : elements) out.push_back(to_i64(origin_, key, element));
                    return out;
                }
            }
            fail_type(origin_, key, at(key), kExpected);
        },
        held.data);
}

std::vector<float> Metadata::reals(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of real numbers";
    return std::visit(
        [&](const auto& elements) -> std::vector<float> {
            using T = typename std::decay_t<decltype(elements)>::value_type;
            if constexpr (std::is_floating_point_v<T>) {
                std::vector<float> out;
                out.reserve(elements.size());
                for (const T element : elements) out.push_back(static_cast<float>(element));
                return out;
            }
            fail_type(origin_, key, at(key), kExpected);
        },
        array(key, kExpected).data);
}

std::vector<bool> Metadata::booleans(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of booleans";
    const Array& held = array(key, kExpected);
    if (held.element != ValueType::boolean) fail_type(origin_, key, at(key), kExpected);
    const auto& bytes = std::get<std::vector<uint8_t>>(held.data);
    return {bytes.begin(), bytes.end()};
}

std::span<const std::string> Metadata::strings(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of strings";
    const Array& held = array(key, kExpected);
    if (const auto* elements = std::get_if<std::vector<std::string>>(&held.data)) return *elements;
    fail_type(origin_, key, at(key), kExpected);
}

}  // namespace plait::gguf
