// What the implementations for Windows share.
#pragma once
#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace plait::platform {

// The error number of std::generic_category() for the last error of this thread.
inline int last_error() {
    const std::error_code code(static_cast<int>(::GetLastError()), std::system_category());
    const std::error_condition condition = code.default_error_condition();
    return condition.category() == std::generic_category() ? condition.value() : EIO;
}

// From UTF-8; empty if it is not valid.
inline std::wstring wide(const std::string& text) {
    const auto bytes = static_cast<int>(text.size());
    const int n =
        ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), bytes, nullptr, 0);
    std::wstring result(static_cast<size_t>(n), L'\0');
    ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), bytes, result.data(), n);
    return result;
}

}  // namespace plait::platform
#endif
