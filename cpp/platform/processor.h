// What differs between processors and is needed in a few instructions: cache lines, waiting, the
// counter, and denormals. The last branch of each is portable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace plait::platform {

// What threads write at the same time is this many bytes apart.
#if defined(__aarch64__) && defined(__APPLE__)
inline constexpr std::size_t kCacheLine = 128;
#else
inline constexpr std::size_t kCacheLine = 64;
#endif

// Tells the processor that this thread is waiting in a loop.
inline void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // takes about as long as PAUSE; YIELD is a NOP on most cores
#endif
}

// The current time, in ticks of the processor's counter.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Treats denormal floats (below 2^-126) as zero on the current thread, as operands and as results,
// while an object of this class exists: docs/decisions/0019.
class NoDenormals {
public:
    NoDenormals() noexcept : before_(read()) { write(before_ | kFlush); }
    ~NoDenormals() { write(before_); }
    NoDenormals(const NoDenormals&) = delete;
    NoDenormals& operator=(const NoDenormals&) = delete;

private:
#if defined(__x86_64__)
    using Mode = unsigned;
    static constexpr Mode kFlush = 1u << 6 | 1u << 15;  // inputs and results, in MXCSR
    static Mode read() noexcept { return __builtin_ia32_stmxcsr(); }
    static void write(Mode mode) noexcept { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
    using Mode = uint64_t;
    static constexpr Mode kFlush = 1u << 24;  // FPCR.FZ: inputs and results, except of F16
    static Mode read() noexcept {
        Mode mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode));
        return mode;
    }
    static void write(Mode mode) noexcept { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
    using Mode = unsigned;
    static constexpr Mode kFlush = 0;  // denormals are computed
    static Mode read() noexcept { return 0; }
    static void write(Mode) noexcept {}
#endif

    Mode before_;
};

}  // namespace plait::platform
