// File::handle_ is a descriptor of the C library, which owns the handle of Windows.
#if defined(_WIN32)
#include "platform/win32.h"

#include <aclapi.h>
#include <fcntl.h>
#include <io.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "platform/file.h"

namespace plait::platform {
namespace {

constexpr size_t kMaxPerCall = size_t{1} << 30;

HANDLE handle_of(int descriptor) { return reinterpret_cast<HANDLE>(::_get_osfhandle(descriptor)); }

int error_of(BOOL succeeded) { return succeeded ? 0 : last_error(); }

FileTime time_of(const FILETIME& time) {
    constexpr int64_t kPerSecond = 10'000'000, kFrom1601To1970 = 11'644'473'600;
    const int64_t ticks = static_cast<int64_t>(time.dwHighDateTime) << 32 | time.dwLowDateTime;
    return {ticks / kPerSecond - kFrom1601To1970, ticks % kPerSecond * 100};
}

// True if the owner of the file is the user of this process.
bool belongs_to_user(HANDLE file) {
    PSID owner = nullptr;
    PSECURITY_DESCRIPTOR security = nullptr;
    if (::GetSecurityInfo(file, SE_FILE_OBJECT, OWNER_SECURITY_INFORMATION, &owner, nullptr,
                          nullptr, nullptr, &security) != ERROR_SUCCESS)
        return false;
    const std::unique_ptr<void, decltype(&::LocalFree)> freed(security, ::LocalFree);
    HANDLE token = nullptr;
    if (!::OpenProcessToken(::GetCurrentProcess(), TOKEN_QUERY, &token)) return false;
    const std::unique_ptr<void, decltype(&::CloseHandle)> closed(token, ::CloseHandle);
    DWORD bytes = 0;
    ::GetTokenInformation(token, TokenUser, nullptr, 0, &bytes);
    std::vector<DWORD_PTR> user(bytes / sizeof(DWORD_PTR) + 1);  // aligned for TOKEN_USER
    if (!::GetTokenInformation(token, TokenUser, user.data(), bytes, &bytes)) return false;
    return ::EqualSid(owner, reinterpret_cast<const TOKEN_USER*>(user.data())->User.Sid);
}

int status_of_handle(HANDLE file, FileStatus* to) {
    *to = {};
    const DWORD type = ::GetFileType(file);
    if (type == FILE_TYPE_PIPE || type == FILE_TYPE_CHAR) {
        to->kind = type == FILE_TYPE_PIPE ? FileKind::pipe : FileKind::device;
        return 0;
    }
    BY_HANDLE_FILE_INFORMATION info;
    FILE_STANDARD_INFO standard;
    if (!::GetFileInformationByHandle(file, &info)) return last_error();
    if (!::GetFileInformationByHandleEx(file, FileStandardInfo, &standard, sizeof standard))
        return last_error();
    const bool is_folder = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    to->kind = is_folder ? FileKind::folder : FileKind::regular;
    to->bytes = static_cast<uint64_t>(standard.EndOfFile.QuadPart);
    to->bytes_on_disk = static_cast<uint64_t>(standard.AllocationSize.QuadPart);
    to->modified = to->changed = time_of(info.ftLastWriteTime);
    to->device = info.dwVolumeSerialNumber;
    to->inode = uint64_t{info.nFileIndexHigh} << 32 | info.nFileIndexLow;
    to->permissions = (info.dwFileAttributes & FILE_ATTRIBUTE_READONLY) != 0 ? 0400 : 0600;
    to->belongs_to_user = belongs_to_user(file);
    return 0;
}

HANDLE open_handle(const std::string& path, DWORD access, DWORD disposition, DWORD flags) {
    constexpr DWORD kShare = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    return ::CreateFileW(wide(path).c_str(), access, kShare, nullptr, disposition, flags, nullptr);
}

std::byte* map(int descriptor, uint64_t offset, uint64_t bytes, bool writable) {
    const DWORD protection = writable ? PAGE_READWRITE : PAGE_READONLY;
    const HANDLE mapping =
        ::CreateFileMappingW(handle_of(descriptor), nullptr, protection, 0, 0, nullptr);
    if (mapping == nullptr) return nullptr;
    void* view =
        ::MapViewOfFile(mapping, writable ? FILE_MAP_WRITE : FILE_MAP_READ,
                        static_cast<DWORD>(offset >> 32), static_cast<DWORD>(offset), bytes);
    ::CloseHandle(mapping);  // the view keeps it
    return static_cast<std::byte*>(view);
}

}  // namespace

int status_of(const std::string& path, FileStatus* status) {
    const HANDLE file = open_handle(path, READ_CONTROL | FILE_READ_ATTRIBUTES, OPEN_EXISTING,
                                    FILE_FLAG_BACKUP_SEMANTICS);  // folders too
    if (file == INVALID_HANDLE_VALUE) return last_error();
    const int error = status_of_handle(file, status);
    ::CloseHandle(file);
    return error;
}

int remove_file(const std::string& path) { return error_of(::DeleteFileW(wide(path).c_str())); }

int rename_file(const std::string& from, const std::string& to) {
    constexpr DWORD kFlags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    return error_of(::MoveFileExW(wide(from).c_str(), wide(to).c_str(), kFlags));
}

void sync_folder(const std::string&) {}  // rename_file() writes through

bool is_local(const std::string&) { return false; }  // unknown

File::~File() {
    if (handle_ >= 0) ::_close(handle_);
}

// A new file has the access list of its folder, which for folders of a user is private.
int File::open(const std::string& path, Access access) {
    if (handle_ >= 0) ::_close(handle_);
    handle_ = -1;
    const bool writes = access != Access::read;
    const DWORD rights = writes ? GENERIC_READ | GENERIC_WRITE : GENERIC_READ;
    const DWORD flags = writes ? FILE_FLAG_OPEN_REPARSE_POINT : 0;
    const HANDLE file = open_handle(path, rights, writes ? OPEN_ALWAYS : OPEN_EXISTING, flags);
    if (file == INVALID_HANDLE_VALUE) return last_error();
    BY_HANDLE_FILE_INFORMATION info{};
    if (writes && ::GetFileInformationByHandle(file, &info) &&
        (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0) {
        ::CloseHandle(file);
        return ELOOP;
    }
    const int mode = _O_BINARY | _O_NOINHERIT | (writes ? _O_RDWR : _O_RDONLY);
    handle_ = ::_open_osfhandle(reinterpret_cast<intptr_t>(file), mode);
    if (handle_ >= 0) return 0;
    ::CloseHandle(file);
    return EMFILE;
}

int File::status(FileStatus* status) const { return status_of_handle(handle_of(handle_), status); }

// Reading at an offset moves the position of the file, which is restored for write().
int File::read(uint64_t offset, std::span<std::byte> target, size_t* got) const {
    const HANDLE file = handle_of(handle_);
    *got = 0;
    LARGE_INTEGER position;
    const bool has_position =
        ::SetFilePointerEx(file, LARGE_INTEGER{}, &position, FILE_CURRENT) != 0;
    OVERLAPPED at{};
    at.Offset = static_cast<DWORD>(offset);
    at.OffsetHigh = static_cast<DWORD>(offset >> 32);
    DWORD n = 0;
    const auto wanted = static_cast<DWORD>(std::min(target.size(), kMaxPerCall));
    const BOOL read = ::ReadFile(file, target.data(), wanted, &n, &at);
    const DWORD error = ::GetLastError();
    if (has_position) ::SetFilePointerEx(file, position, nullptr, FILE_BEGIN);
    *got = n;
    if (read || error == ERROR_HANDLE_EOF || error == ERROR_BROKEN_PIPE) return 0;
    ::SetLastError(error);
    return last_error();
}

int File::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        DWORD n = 0;
        const auto wanted = static_cast<DWORD>(std::min(bytes.size(), kMaxPerCall));
        if (!::WriteFile(handle_of(handle_), bytes.data(), wanted, &n, nullptr))
            return last_error();
        bytes = bytes.subspan(n);
    }
    return 0;
}

int File::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
        OVERLAPPED at{};
        at.Offset = static_cast<DWORD>(offset);
        at.OffsetHigh = static_cast<DWORD>(offset >> 32);
        DWORD n = 0;
        const auto wanted = static_cast<DWORD>(std::min(bytes.size(), kMaxPerCall));
        if (!::WriteFile(handle_of(handle_), bytes.data(), wanted, &n, &at)) return last_error();
        bytes = bytes.subspan(n);
        offset += n;
    }
    return 0;
}

int File::resize(uint64_t bytes) { return ::_chsize_s(handle_, static_cast<int64_t>(bytes)); }

// A smaller allocation than the file's size would cut the file.
int File::reserve(uint64_t offset, uint64_t bytes) {
    FileStatus now;
    if (const int error = status(&now); error != 0 || now.bytes >= offset + bytes) return error;
    FILE_ALLOCATION_INFO info;
    info.AllocationSize.QuadPart = static_cast<LONGLONG>(offset + bytes);
    return error_of(
        ::SetFileInformationByHandle(handle_of(handle_), FileAllocationInfo, &info, sizeof info));
}

int File::sync() { return error_of(::FlushFileBuffers(handle_of(handle_))); }

int File::lock() {
    OVERLAPPED from_start{};
    return error_of(::LockFileEx(handle_of(handle_), LOCKFILE_EXCLUSIVE_LOCK, 0, MAXDWORD, MAXDWORD,
                                 &from_start));
}

int File::set_permissions(uint32_t) { return 0; }  // see open()

int File::touch() {
    FILETIME now;
    ::GetSystemTimeAsFileTime(&now);
    return error_of(::SetFileTime(handle_of(handle_), nullptr, nullptr, &now));
}

std::byte* File::map_private(uint64_t bytes) const { return map(handle_, 0, bytes, false); }

std::byte* File::map_shared(uint64_t offset, uint64_t bytes, bool writable) const {
    return map(handle_, offset, bytes, writable);
}

void unmap(const std::byte* start, uint64_t) { ::UnmapViewOfFile(start); }

}  // namespace plait::platform
#endif
