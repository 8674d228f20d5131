#include "backend/vulkan/withheld.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <variant>

#include "backend/vulkan/cooperative_matrix.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::vulkan {
namespace {

template <typename... Ops>
bool names_one_of(std::string_view name, const std::variant<Ops...>*) {
    return ((name == op_name(Ops{})) || ...);
}

}  // namespace

std::set<std::string, std::less<>> withheld() {
    std::set<std::string, std::less<>> names;
    const char* value = std::getenv("PLAIT_VULKAN_WITHOUT");
    std::string_view rest = value == nullptr ? "" : value;
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

}  // namespace plait::vulkan
