#include "backend/cpu/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#ifdef PLAIT_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/error.h"
#include "base/text.h"

namespace plait::cpu {
namespace {

constexpr std::array kIsas = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::amx};

bool built(Isa isa) {
    switch (isa) {
    case Isa::scalar: return true;
#ifdef PLAIT_HAS_AVX2
    case Isa::avx2: return true;
#endif
#ifdef PLAIT_HAS_AVX512
    case Isa::avx512: return true;
#endif
#ifdef PLAIT_HAS_AMX
    case Isa::amx: return true;
#endif
    default: return false;
    }
}

#ifdef PLAIT_HAS_AMX
// Whether the processor has tiles of integers and the kernel (Linux 5.16 or later) lets this process
// use them, which it has to be asked for once. Threads started later inherit the permission.
bool tiles_permitted() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
    if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
    unsigned enabled, high;
    asm("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    constexpr unsigned kConfig = 1u << 17, kData = 1u << 18;
    if ((enabled & kConfig) == 0 || (enabled & kData) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool machine_runs(Isa isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    case Isa::avx512:
        return machine_runs(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
               __builtin_cpu_supports("avx512bf16");
    case Isa::amx: {
#ifdef PLAIT_HAS_AMX
        static const bool permitted = machine_runs(Isa::avx512) && tiles_permitted();
        return permitted;
#else
        return false;
#endif
    }
    }
#endif
    return isa == Isa::scalar;
}

bool available(Isa isa) { return built(isa) && machine_runs(isa); }

// The limit that `from` sets; refuses what is unknown or missing.
Isa limit(std::string_view name, std::string_view from) {
    const std::optional<Isa> isa = isa_from_name(name);
    if (isa && available(*isa)) return *isa;
    std::string names;
    for (const Isa each : available_isas())
        names += text(names.empty() ? "" : ", ", to_string(each));
    const char* problem = isa ? "not available here" : "unknown";
    throw BackendError(
        text(from, ": instruction set '", name, "' is ", problem, ", expected one of ", names));
}

}  // namespace

std::string_view to_string(Isa isa) {
    switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
    }
    return "";
}

std::optional<Isa> isa_from_name(std::string_view name) {
    for (const Isa isa : kIsas)
        if (to_string(isa) == name) return isa;
    return std::nullopt;
}

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (const Isa isa : kIsas)
        if (available(isa)) isas.push_back(isa);
    return isas;
}

Isa choose_isa(std::optional<std::string_view> most) {
    Isa chosen = available_isas().back();
    if (most) chosen = std::min(chosen, limit(*most, "isa"));
    if (const char* name = std::getenv("PLAIT_ISA"); name && *name)
        chosen = std::min(chosen, limit(name, "PLAIT_ISA"));
    return chosen;
}

const Kernels& kernels(Isa isa) {
    switch (isa) {
#ifdef PLAIT_HAS_AVX2
    case Isa::avx2: return avx2::kernels();
#endif
#ifdef PLAIT_HAS_AVX512
    case Isa::avx512: return avx512::kernels();
    case Isa::amx: return avx512::kernels();  // whose products look at what is packed for tiles
#endif
    default: return scalar::kernels();
    }
}

}  // namespace plait::cpu
