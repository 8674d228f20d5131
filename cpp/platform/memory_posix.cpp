#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "platform/memory.h"

namespace plait::platform {

std::byte* map_memory(uint64_t bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// Maps more and unmaps the excess on both sides.
std::byte* map_huge_memory(uint64_t bytes) {
    std::byte* p = map_memory(bytes + kHugePageBytes);
    if (!p) return nullptr;
    const uint64_t before =
        align_up(reinterpret_cast<uint64_t>(p), kHugePageBytes) - reinterpret_cast<uint64_t>(p);
    if (before > 0) ::munmap(p, before);
    ::munmap(p + before + bytes, kHugePageBytes - before);
#if defined(__linux__)
    ::madvise(p + before, bytes, MADV_HUGEPAGE);
#endif
    return p + before;
}

void unmap_memory(std::byte* start, uint64_t bytes) { ::munmap(start, bytes); }

uint64_t page_bytes() {
    static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

}  // namespace plait::platform
#endif
