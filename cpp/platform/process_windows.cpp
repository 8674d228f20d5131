#if defined(_WIN32)
#include <algorithm>
#include <bit>
#include <vector>

#include "base/text.h"
#include "platform/file.h"
#include "platform/process.h"
#include "platform/win32.h"

namespace plait::platform {

int64_t process_id() { return ::GetCurrentProcessId(); }

std::string machine_identity() { return {}; }
std::string boot_identity() { return {}; }

std::string library_identity(const void* code) {
    HMODULE module = nullptr;
    constexpr DWORD kFlags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (!::GetModuleHandleExW(kFlags, static_cast<const wchar_t*>(code), &module)) return {};
    std::wstring name(32768, L'\0');
    const DWORD n = ::GetModuleFileNameW(module, name.data(), static_cast<DWORD>(name.size()));
    const int bytes = ::WideCharToMultiByte(CP_UTF8, 0, name.data(), static_cast<int>(n), nullptr,
                                            0, nullptr, nullptr);
    std::string path(static_cast<size_t>(bytes), '\0');
    ::WideCharToMultiByte(CP_UTF8, 0, name.data(), static_cast<int>(n), path.data(), bytes, nullptr,
                          nullptr);
    FileStatus status;
    if (path.empty() || status_of(path, &status) != 0) return {};
    return text(status.device, ":", status.inode, ":", status.bytes, ":", status.changed.seconds,
                ".", status.changed.nanoseconds);
}

// Of the first 64 logical processors, which is the group that a process starts in.
int usable_cores() {
    DWORD_PTR allowed = 0, all = 0;
    if (!::GetProcessAffinityMask(::GetCurrentProcess(), &allowed, &all)) return 1;
    DWORD bytes = 0;
    ::GetLogicalProcessorInformation(nullptr, &bytes);
    std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> parts(bytes / sizeof parts[0]);
    if (!::GetLogicalProcessorInformation(parts.data(), &bytes)) return std::popcount(allowed);
    const auto cores = std::ranges::count_if(parts, [&](const auto& part) {
        return part.Relationship == RelationProcessorCore && (part.ProcessorMask & allowed) != 0;
    });
    return std::max(1, static_cast<int>(cores));
}

}  // namespace plait::platform
#endif
