// Memory of the operating system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plait::platform {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;  // on x86-64, and on ARM with pages of 4 KiB

// Returns memory that is zero, whole pages of it; null if there is none.
std::byte* map_memory(uint64_t bytes);
// Returns memory that is aligned to kHugePageBytes and in huge pages where the system has them; null if
// there is none. `bytes` is a multiple of page_bytes().
std::byte* map_huge_memory(uint64_t bytes);
void unmap_memory(std::byte* start, uint64_t bytes);

// 4096 on most systems, 16384 on Apple silicon, up to 65536 on other ARM systems.
uint64_t page_bytes();

}  // namespace plait::platform
