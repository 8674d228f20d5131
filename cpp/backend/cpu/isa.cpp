#include "backend/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "backend/cpu/blas/library.h"
#include "base/error.h"
#include "base/text.h"

// CMake writes this file: PLAIT_BUILT_ISA(name) for each instruction set that is compiled in.
#define PLAIT_BUILT_ISA(name)    \
    namespace plait::cpu::name { \
    const Kernels& kernels();    \
    }
#include <plait_built_isas.inc>
#undef PLAIT_BUILT_ISA

namespace plait::cpu {
namespace {

using KernelsFunction = const Kernels& (*)();

// Null if the instruction set was not compiled in.
KernelsFunction built_kernels(Isa isa) {
    const std::string_view name = isa->name;
#define PLAIT_BUILT_ISA(built) \
    if (name == #built) return built::kernels;
#include <plait_built_isas.inc>
#undef PLAIT_BUILT_ISA
    return nullptr;
}

#if defined(__x86_64__)
// True if the processor has tiles of 8-bit integers and BF16, and the kernel (Linux 5.16 or later)
// lets this process use them, or if this build emulates them. One request suffices; threads started
// later inherit the permission.
bool amx_is_permitted() {
#if defined(PLAIT_EMULATED_TILES)
    return true;
#elif defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25,
                       kAll = kBf16 | kTile | kInt8;
    if ((d & kAll) != kAll) return false;
    unsigned enabled, high;
    asm("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    constexpr unsigned kConfig = 1u << 17, kData = 1u << 18;
    if ((enabled & kConfig) == 0 || (enabled & kData) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}
#endif

#if defined(__aarch64__)
// Linux numbers the features in its documentation arm64/elf_hwcaps.rst; macOS names them.
bool arm_has([[maybe_unused]] unsigned long vector, [[maybe_unused]] int bit,
             [[maybe_unused]] const char* name) {
#if defined(__linux__)
    return (getauxval(vector) >> bit & 1) != 0;
#elif defined(__APPLE__)
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
#else
    return false;
#endif
}
#endif

// Returns the CpuFeatures of this machine. Checks AMX, which requires permission of the operating
// system, and OpenBLAS, which this loads, only if `wanted` includes them.
uint32_t detect(uint32_t wanted) {
    uint32_t found = 0;
    const auto add = [&](bool supported, CpuFeature feature) {
        if (supported) found |= feature;
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
    add(__builtin_cpu_supports("avx2"), kAvx2);
    add(__builtin_cpu_supports("fma"), kFma);
    add(__builtin_cpu_supports("f16c"), kF16c);
    add(__builtin_cpu_supports("bmi2"), kBmi2);
    add(__builtin_cpu_supports("avx512f"), kAvx512f);
    add(__builtin_cpu_supports("avx512bw"), kAvx512bw);
    add(__builtin_cpu_supports("avx512vl"), kAvx512vl);
    add(__builtin_cpu_supports("avx512dq"), kAvx512dq);
    add(__builtin_cpu_supports("avx512vnni"), kAvx512vnni);
    add(__builtin_cpu_supports("avx512vbmi"), kAvx512vbmi);
    add(__builtin_cpu_supports("avx512bf16"), kAvx512bf16);
    if ((wanted & kAmx) != 0) {
        static const bool permitted = amx_is_permitted();
        add(permitted, kAmx);
    }
#elif defined(__aarch64__)
    constexpr unsigned long kHwcap = 16, kHwcap2 = 26;  // AT_HWCAP, AT_HWCAP2
    add(arm_has(kHwcap, 20, "hw.optional.arm.FEAT_DotProd"), kNeonDot);
    add(arm_has(kHwcap2, 13, "hw.optional.arm.FEAT_I8MM"), kNeonI8mm);
    add(arm_has(kHwcap2, 14, "hw.optional.arm.FEAT_BF16"), kNeonBf16);
#endif
    if ((wanted & kOpenBlas) != 0) add(openblas_problem() == nullptr, kOpenBlas);
    return found & wanted;
}

bool is_available(Isa isa) {
    return built_kernels(isa) != nullptr && detect(isa->required) == isa->required;
}

template <typename Condition>
std::vector<Isa> isas_where(Condition condition) {
    std::vector<Isa> isas;
    for (const IsaInfo& isa : kIsas)
        if (condition(&isa)) isas.insert(isas.begin(), &isa);
    return isas;
}

std::string join_names(const std::vector<Isa>& isas) {
    std::string names;
    for (const Isa isa : isas) names += text(names.empty() ? "" : ", ", to_string(isa));
    return names;
}

[[noreturn]] void throw_no_openblas(Isa isa, std::string_view source) {
    const bool built = built_kernels(isa) != nullptr;
    throw UnsupportedError(text(
        source, ": instruction set '", to_string(isa), "' ",
        built ? text("requires OpenBLAS, which cannot be used: ", openblas_problem(),
                     "; install it (Debian and Ubuntu: libopenblas0, Fedora: openblas-threads, "
                     "macOS: brew install openblas) or choose one of ")
              : std::string("is not part of this build, which was configured with "
                            "PLAIT_BLAS=OFF; expected one of "),
        join_names(available_isas())));
}

// Returns the instruction set of that name. `source`: the origin of the name, for errors.
Isa limit_from(std::string_view name, std::string_view source) {
    const Isa isa = isa_from_name(name);
    if (isa != nullptr && is_available(isa)) return isa;
    if (isa != nullptr && (isa->required & kOpenBlas) != 0) throw_no_openblas(isa, source);
    const char* problem = isa != nullptr ? "not available here" : "unknown";
    throw BackendError(text(source, ": instruction set '", name, "' is ", problem,
                            ", expected one of ", join_names(available_isas())));
}

}  // namespace

Isa isa_from_name(std::string_view name) {
    for (const IsaInfo& isa : kIsas)
        if (isa.name == name) return &isa;
    return nullptr;
}

std::vector<Isa> built_isas() {
    return isas_where([](Isa isa) { return built_kernels(isa) != nullptr; });
}

std::vector<Isa> available_isas() { return isas_where(is_available); }

std::string isa_names() {
    return join_names(isas_where([](Isa) { return true; }));
}

Isa default_isa() {
    // Where this build has kernels for the kind of processor, OpenBLAS is used only if it is
    // requested, since it makes results depend on the batch.
    const bool has_tuned = std::ranges::any_of(kIsas, [](const IsaInfo& isa) {
        return (isa.required & ~uint32_t{kOpenBlas}) != 0 && built_kernels(&isa) != nullptr;
    });
    Isa isa = std::begin(kIsas);
    while ((has_tuned && (isa->required & kOpenBlas) != 0) || !is_available(isa)) ++isa;
    return isa;
}

Isa choose_isa(std::optional<std::string_view> limit) {
    Isa chosen = limit ? limit_from(*limit, "isa") : nullptr;
    if (const char* name = std::getenv("PLAIT_ISA"); name != nullptr && *name != '\0') {
        // Rows that come later in the table are preferred less.
        const Isa of_process = limit_from(name, "PLAIT_ISA");
        chosen = chosen != nullptr ? std::max(chosen, of_process) : of_process;
    }
    return chosen != nullptr ? chosen : default_isa();
}

bool reads_streams_ahead() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") != 0;
#else
    return false;
#endif
}

const Kernels& kernels(Isa isa) {
    const KernelsFunction built = built_kernels(isa);
    PLAIT_CHECK(built != nullptr);
    return built();
}

}  // namespace plait::cpu
