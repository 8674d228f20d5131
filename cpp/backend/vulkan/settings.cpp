#include "backend/vulkan/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <variant>

#include "backend/vulkan/cooperative_matrix.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::vulkan {
namespace {

template <typename... Ops>
bool names_one_of(std::string_view name, const std::variant<Ops...>*) {
    return ((name == op_name(Ops{})) || ...);
}

// The value of an environment variable; empty if it is not set.
std::string_view or_empty(const char* value) { return value == nullptr ? "" : value; }

}  // namespace

std::set<std::string, std::less<>> disabled_features() {
    std::set<std::string, std::less<>> names;
    std::string_view rest = or_empty(std::getenv("PLAIT_VULKAN_WITHOUT"));
    while (!rest.empty()) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view name = rest.substr(0, comma);
        rest.remove_prefix(std::min(comma + 1, rest.size()));
        if (name != kCooperativeMatrix && !names_one_of(name, static_cast<const Op*>(nullptr)))
            throw BackendError(text("PLAIT_VULKAN_WITHOUT: expected names of operations, or ",
                                    kCooperativeMatrix, ", got \"", name, "\""));
        names.emplace(name);
    }
    return names;
}

uint64_t max_memory_bytes() {
    const std::string_view digits = or_empty(std::getenv("PLAIT_VULKAN_MEMORY"));
    if (digits.empty()) return UINT64_MAX;
    uint64_t mib = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), mib);
    if (error != std::errc() || end != digits.data() + digits.size() || mib > UINT64_MAX >> 20)
        throw BackendError(
            text("PLAIT_VULKAN_MEMORY: expected a number of MiB, got \"", digits, "\""));
    return mib << 20;
}

std::filesystem::path pipeline_cache_folder() { return cache_folder("PLAIT_VULKAN_CACHE"); }

}  // namespace plait::vulkan
