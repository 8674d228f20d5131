#include "base/text.h"

#include <charconv>

namespace plait {

void TextPart::format(int64_t value) {
    size_ =
        static_cast<size_t>(std::to_chars(digits_, digits_ + sizeof digits_, value).ptr - digits_);
}

void TextPart::format(uint64_t value) {
    size_ =
        static_cast<size_t>(std::to_chars(digits_, digits_ + sizeof digits_, value).ptr - digits_);
}

void TextPart::format(double value) {
    constexpr int kPrecision = 6;
    const auto end = std::to_chars(digits_, digits_ + sizeof digits_, value,
                                   std::chars_format::general, kPrecision);
    size_ = static_cast<size_t>(end.ptr - digits_);
}

std::string concatenate(std::initializer_list<TextPart> parts) {
    size_t size = 0;
    for (const TextPart& part : parts) size += part.view().size();
    std::string result;
    result.reserve(size);
    for (const TextPart& part : parts) result += part.view();
    return result;
}

std::string hexadecimal(uint64_t value) {
    char digits[16];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, value, 16).ptr);
}

}  // namespace plait
