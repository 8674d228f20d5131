// The folder of the user for files that can be made again.
#pragma once

#include <filesystem>

namespace plait {

// The folder in an environment variable; without it, `plait` in XDG_CACHE_HOME or ~/.cache. Empty if
// the variable is "off" or no folder is known.
std::filesystem::path cache_folder(const char* variable);

}  // namespace plait
