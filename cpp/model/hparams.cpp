#include "model/hparams.h"

#include <cmath>
#include <type_traits>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"

namespace plait {
namespace {

// Returns true if the value is neutral: 0, false, empty, or 1 for a factor or a number of groups.
bool is_nothing(std::string_view key, const gguf::Value& value) {
    const bool one_is_nothing =
        key.ends_with("scale") || key.ends_with("factor") || key.ends_with("group_count");
    return std::visit(
        [one_is_nothing]<typename T>(const T& x) {
            if constexpr (std::is_same_v<T, std::string>)
                return x.empty();
            else if constexpr (std::is_same_v<T, gguf::Array>)
                return x.size() == 0;
            else
                return x == T{} || (one_is_nothing && x == static_cast<T>(1));
        },
        value.data());
}

}  // namespace

Hparams::Hparams(const gguf::Metadata& metadata, std::string architecture)
    : metadata_(metadata), arch_(std::move(architecture)) {}

std::string Hparams::key(std::string_view suffix) const {
    asked_.emplace(suffix);
    return gguf::key(arch_, suffix);
}
bool Hparams::has(std::string_view suffix) const { return metadata_.has(key(suffix)); }

void Hparams::refuse(std::string_view suffix, const std::string& why) const {
    throw ModelError(text(key(suffix), ": ", why));
}

std::vector<std::string> Hparams::unread() const {
    const std::string prefix = gguf::key(arch_, "");
    std::vector<std::string> unread;
    for (const gguf::Entry& entry : metadata_) {
        if (!entry.key.starts_with(prefix) || is_nothing(entry.key, entry.value)) continue;
        std::string suffix = entry.key.substr(prefix.size());
        if (!asked_.contains(suffix)) unread.push_back(std::move(suffix));
    }
    return unread;
}

int Hparams::checked(std::string_view suffix, int64_t value, int64_t min, int64_t max) const {
    if (value < min || value > max)
        refuse(suffix, text("expected ", min, " to ", max, ", got ", value));
    return static_cast<int>(value);
}

float Hparams::checked(std::string_view suffix, double value, bool positive) const {
    const auto narrow = static_cast<float>(value);
    if (!std::isfinite(narrow) || (positive && !(narrow > 0.0f)))
        refuse(suffix,
               text("expected a finite", positive ? " positive" : "", " number, got ", value));
    return narrow;
}

int Hparams::count(std::string_view suffix, int64_t max) const {
    return checked(suffix, metadata_.integer(key(suffix)), 1, max);
}
int Hparams::count(std::string_view suffix, int64_t max, int fallback) const {
    return has(suffix) ? count(suffix, max) : fallback;
}
int Hparams::index(std::string_view suffix, int64_t max) const {
    return checked(suffix, metadata_.integer(key(suffix)), 0, max);
}
int Hparams::index(std::string_view suffix, int64_t max, int fallback) const {
    return has(suffix) ? index(suffix, max) : fallback;
}

std::vector<int> Hparams::per_layer(std::string_view suffix, int n_layers, int64_t min,
                                    int64_t max) const {
    const auto layers = static_cast<size_t>(n_layers);
    if (!metadata_.at(key(suffix)).is_array())
        return std::vector<int>(layers, checked(suffix, metadata_.integer(key(suffix)), min, max));
    const std::vector<int64_t> values = metadata_.integers(key(suffix));
    if (values.size() < layers)
        refuse(suffix,
               text("expected a value for each of ", n_layers, " layers, got ", values.size()));
    std::vector<int> result(layers);
    for (size_t i = 0; i < layers; ++i) result[i] = checked(suffix, values[i], min, max);
    return result;
}
std::vector<int> Hparams::per_layer(std::string_view suffix, int n_layers, int64_t min, int64_t max,
                                    int fallback) const {
    if (has(suffix)) return per_layer(suffix, n_layers, min, max);
    return std::vector<int>(static_cast<size_t>(n_layers), fallback);
}

std::vector<bool> Hparams::flags(std::string_view suffix, int n_layers) const {
    const auto layers = static_cast<size_t>(n_layers);
    const auto* array = std::get_if<gguf::Array>(&metadata_.at(key(suffix)).data());
    if (array == nullptr || array->element != gguf::ValueType::boolean) {
        const std::vector<int> numbers = per_layer(suffix, n_layers, 0, 1);
        return std::vector<bool>(numbers.begin(), numbers.end());
    }
    std::vector<bool> result = metadata_.booleans(key(suffix));
    if (result.size() < layers)
        refuse(suffix,
               text("expected a flag for each of ", n_layers, " layers, got ", result.size()));
    result.resize(layers);
    return result;
}

float Hparams::positive(std::string_view suffix) const {
    return checked(suffix, metadata_.real(key(suffix)), true);
}
float Hparams::positive(std::string_view suffix, float fallback) const {
    return has(suffix) ? positive(suffix) : fallback;
}
float Hparams::number(std::string_view suffix, float fallback) const {
    return has(suffix) ? checked(suffix, metadata_.real(key(suffix)), false) : fallback;
}
bool Hparams::flag(std::string_view suffix, bool fallback) const {
    return metadata_.boolean(key(suffix), fallback);
}
std::string Hparams::string(std::string_view suffix, std::string_view fallback) const {
    return metadata_.string(key(suffix), fallback);
}

}  // namespace plait
