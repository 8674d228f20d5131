// Message building: text("sequence ", 3, " expects ", p). The library has no std::format yet.
#pragma once

#include <sstream>
#include <string>

namespace plait {

template <typename... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return std::move(out).str();
}

}  // namespace plait
