#include "allocations.h"

#include <cstdlib>
#include <new>

namespace {

constexpr int64_t kNever = -1;

thread_local uint64_t g_allocations = 0;
thread_local int64_t g_until_failure = kNever;

void* allocate(std::size_t bytes) {
    ++g_allocations;
    if (g_until_failure != kNever && g_until_failure-- == 0) throw std::bad_alloc();
    if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
    throw std::bad_alloc();
}

void* try_allocate(std::size_t bytes) noexcept {
    try {
        return allocate(bytes);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

}  // namespace

// Every form is replaced: a sanitizer supplies those that are not, and memory from its operator new
// must not be passed to free().
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return try_allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return try_allocate(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace plait {

uint64_t n_allocations() { return g_allocations; }

FailingAllocation::FailingAllocation(int64_t n) { g_until_failure = n; }
FailingAllocation::~FailingAllocation() { g_until_failure = kNever; }

}  // namespace plait
