// Treats denormal floats (below 2^-126) as zero on the current thread, as operands and as results,
// while an object of this class exists: docs/decisions/0019.
#pragma once

namespace plait::cpu {

class NoDenormals {
public:
#if defined(__x86_64__)
    NoDenormals() noexcept : before_(__builtin_ia32_stmxcsr()) {
        constexpr unsigned kInputsAreZero = 1u << 6, kResultsAreZero = 1u << 15;
        __builtin_ia32_ldmxcsr(before_ | kInputsAreZero | kResultsAreZero);
    }
    ~NoDenormals() { __builtin_ia32_ldmxcsr(before_); }
#else
    NoDenormals() noexcept {}
    ~NoDenormals() {}
#endif
    NoDenormals(const NoDenormals&) = delete;
    NoDenormals& operator=(const NoDenormals&) = delete;

private:
    [[maybe_unused]] unsigned before_ = 0;
};

}  // namespace plait::cpu
