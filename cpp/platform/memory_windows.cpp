#if defined(_WIN32)
#include "base/checked.h"
#include "platform/memory.h"
#include "platform/win32.h"

namespace plait::platform {
namespace {

std::byte* reserve(std::byte* at, uint64_t bytes, DWORD kind) {
    return static_cast<std::byte*>(::VirtualAlloc(at, bytes, kind, PAGE_READWRITE));
}

}  // namespace

std::byte* map_memory(uint64_t bytes) { return reserve(nullptr, bytes, MEM_RESERVE | MEM_COMMIT); }

// Huge pages need a privilege that users rarely have, so the memory is only aligned. A range cannot
// be released in part: an aligned address is found and released, then allocated again, which fails
// if another thread has taken it meanwhile.
std::byte* map_huge_memory(uint64_t bytes) {
    for (int attempt = 0; attempt < 16; ++attempt) {
        std::byte* found = reserve(nullptr, bytes + kHugePageBytes, MEM_RESERVE);
        if (!found) return nullptr;
        const auto address = reinterpret_cast<uint64_t>(found);
        std::byte* const aligned = found + (align_up(address, kHugePageBytes) - address);
        ::VirtualFree(found, 0, MEM_RELEASE);
        if (std::byte* p = reserve(aligned, bytes, MEM_RESERVE | MEM_COMMIT)) return p;
    }
    return nullptr;
}

void unmap_memory(std::byte* start, uint64_t) { ::VirtualFree(start, 0, MEM_RELEASE); }

uint64_t page_bytes() {
    SYSTEM_INFO info;
    ::GetSystemInfo(&info);
    return info.dwPageSize;
}

}  // namespace plait::platform
#endif
