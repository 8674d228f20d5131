// Formatting of names from files for error messages.
#pragma once

#include <string>
#include <string_view>

namespace plait::gguf {

// Returns 'name' in quotes, truncated after 80 bytes, with all but printable ASCII escaped as \xNN,
// so that messages are short, valid UTF-8 and free of control characters.
inline std::string quoted(std::string_view name) {
    constexpr size_t kMaxBytes = 80;
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string out = "'";
    for (const char c : name.substr(0, kMaxBytes)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F && c != '\\') {
            out += c;
        } else {
            out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
        }
    }
    return out + (name.size() > kMaxBytes ? "...'" : "'");
}

}  // namespace plait::gguf
