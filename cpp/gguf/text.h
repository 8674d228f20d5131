// Names from a file, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace plait::gguf {

// 'name', with everything but printable ASCII escaped as \xNN and cut after 80 bytes: a message must
// be short, valid UTF-8 and free of control characters whatever the file says.
inline std::string quoted(std::string_view name) {
    constexpr size_t kLongest = 80;
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string out = "'";
    for (const char c : name.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F && c != '\\') {
            out += c;
        } else {
            out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
        }
    }
    return out + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace plait::gguf
