// Builds messages: text("sequence ", 3, " expects ", p). GCC 12 has no std::format.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace plait {

// An argument of text(). Numbers are formatted as an std::ostream does by default.
class TextPart {
public:
    TextPart(std::string_view text) : text_(text) {}
    TextPart(const char* text) : text_(text) {}
    TextPart(const std::string& text) : text_(text) {}
    TextPart(char c) : size_(1) { digits_[0] = c; }
    template <std::signed_integral T>
    TextPart(T value) {
        format(static_cast<int64_t>(value));
    }
    template <std::unsigned_integral T>
    TextPart(T value) {
        format(static_cast<uint64_t>(value));
    }
    TextPart(double value) { format(value); }
    TextPart(const TextPart&) = delete;
    TextPart& operator=(const TextPart&) = delete;

    std::string_view view() const { return size_ > 0 ? std::string_view(digits_, size_) : text_; }

private:
    void format(int64_t value);
    void format(uint64_t value);
    void format(double value);

    std::string_view text_;
    size_t size_ = 0;  // of digits_; 0: the part is text_
    char digits_[32];
};

std::string concatenate(std::initializer_list<TextPart> parts);

// Lowercase hexadecimal digits, without a prefix or leading zeros.
std::string hexadecimal(uint64_t value);

template <typename... Parts>
std::string text(const Parts&... parts) {
    return concatenate({TextPart(parts)...});
}

}  // namespace plait
