// The hyperparameters of a model: the keys that begin with "{arch}.". Their ranges are checked
// here, so that a damaged file cannot cause a division by zero or a huge allocation later.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"

namespace plait {

// All getters throw ModelError that names the key, its value and the expected range.
class Hparams {
public:
    Hparams(const gguf::Metadata& metadata, std::string architecture);

    const std::string& architecture() const { return arch_; }
    const gguf::Metadata& metadata() const { return metadata_; }
    std::string key(std::string_view suffix) const;
    bool has(std::string_view suffix) const;

    // An integer in 1 .. max; for index(), in 0 .. max.
    int count(std::string_view suffix, int64_t max = kMaxSize) const;
    int count(std::string_view suffix, int64_t max, int fallback) const;
    int index(std::string_view suffix, int64_t max) const;
    int index(std::string_view suffix, int64_t max, int fallback) const;
    // One value for all layers, or an array with one per layer; each in min .. max.
    std::vector<int> per_layer(std::string_view suffix, int n_layers, int64_t min,
                               int64_t max) const;
    std::vector<int> per_layer(std::string_view suffix, int n_layers, int64_t min, int64_t max,
                               int fallback) const;
    // An array with one flag per layer, booleans or 0 and 1.
    std::vector<bool> flags(std::string_view suffix, int n_layers) const;
    // Finite and positive.
    float positive(std::string_view suffix) const;
    float positive(std::string_view suffix, float fallback) const;
    // Finite.
    float number(std::string_view suffix, float fallback) const;
    bool flag(std::string_view suffix, bool fallback) const;
    std::string string(std::string_view suffix, std::string_view fallback) const;

    [[noreturn]] void refuse(std::string_view suffix, const std::string& why) const;
    // Returns the keys that no getter has read, without the architecture's name. Omits keys whose
    // value is neutral: 0, false, an empty string or array, a factor of 1.
    std::vector<std::string> unread() const;

    static constexpr int64_t kMaxSize = 1 << 24;
    static constexpr int64_t kMaxLayers = 4096;

private:
    int checked(std::string_view suffix, int64_t value, int64_t min, int64_t max) const;
    float checked(std::string_view suffix, double value, bool positive) const;

    const gguf::Metadata& metadata_;
    std::string arch_;
    mutable std::set<std::string, std::less<>> asked_;  // without the architecture's name
};

}  // namespace plait
