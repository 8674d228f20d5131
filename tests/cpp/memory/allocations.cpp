#include "allocations.h"

#include <cstdlib>
#include <new>

namespace {

thread_local uint64_t g_allocations = 0;

void* allocate(std::size_t bytes) {
    ++g_allocations;
    if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
    throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace plait {

uint64_t n_allocations() { return g_allocations; }

}  // namespace plait
