#include "base/cache_folder.h"

#include <cstdlib>
#include <string_view>

namespace plait {
namespace {

std::string_view or_empty(const char* value) { return value == nullptr ? "" : value; }

}  // namespace

std::filesystem::path cache_folder(const char* variable) {
    namespace fs = std::filesystem;
    if (const auto folder = or_empty(std::getenv(variable)); !folder.empty())
        return folder == "off" ? fs::path() : fs::path(folder);
    if (const auto cache = or_empty(std::getenv("XDG_CACHE_HOME")); cache.starts_with('/'))
        return fs::path(cache) / "plait";
    if (const auto home = or_empty(std::getenv("HOME")); !home.empty())
        return fs::path(home) / ".cache" / "plait";
    return {};
}

}  // namespace plait
