// Message building: text("sequence ", 3, " expects ", p). The library has no std::format yet.
#pragma once

#include <sstream>
#include <string>

namespace plait {

// A stream that throws when it cannot grow; by default it leaves out what has no room.
class TextStream : public std::ostringstream {
public:
    TextStream() { exceptions(badbit); }
};

template <typename... Parts>
std::string text(const Parts&... parts) {
    TextStream out;
    (out << ... << parts);
    return std::move(out).str();
}

}  // namespace plait
