#include "roofline.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "backend/cpu/memory.h"
#include "backend/cpu/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PLAIT_AVX2 __attribute__((target("avx2,fma")))
#define PLAIT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni,avx512bf16")))
#endif

namespace plait::cpu {
namespace {

// Applies to the thread that runs all benchmarks, as to the threads that run plans.
const platform::NoDenormals no_denormals;

constexpr int kTurns = 1 << 16;
constexpr int kSums = 12;  // enough to hide every latency, and they fit in 16 registers

// Updates kSums sums kTurns times. The empty assembly keeps the compiler from simplifying them.
#define PLAIT_TURNS(Vector, start, step)                                      \
    Vector sums[kSums];                                                       \
    _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) sums[i] = start; \
    for (int turn = 0; turn < kTurns; ++turn) {                               \
        _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {            \
            Vector next = step;                                               \
            asm volatile("" : "+x"(next));                                    \
            sums[i] = next;                                                   \
        }                                                                     \
    }

double plain_f32() {
    float x = 1.5f;
    asm volatile("" : "+x"(x));
    PLAIT_TURNS(float, x, sums[i] * x + x)
    return 2.0 * kSums * kTurns;
}

#if defined(__x86_64__)
PLAIT_AVX2 double avx2_f32() {
    const __m256 x = _mm256_set1_ps(0.5f);
    PLAIT_TURNS(__m256, x, _mm256_fmadd_ps(sums[i], x, x))
    return 2.0 * 8 * kSums * kTurns;
}
PLAIT_AVX2 double avx2_int8() {
    const __m256i x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    PLAIT_TURNS(
        __m256i, x,
        _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(sums[i], x), ones)))
    return 2.0 * 32 * kSums * kTurns;
}
PLAIT_AVX512 double avx512_f32() {
    const __m512 x = _mm512_set1_ps(0.5f);
    PLAIT_TURNS(__m512, x, _mm512_fmadd_ps(sums[i], x, x))
    return 2.0 * 16 * kSums * kTurns;
}
PLAIT_AVX512 double avx512_bf16() {
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0);
    PLAIT_TURNS(__m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(sums[i], x, x))
    return 2.0 * 32 * kSums * kTurns;
}
PLAIT_AVX512 double avx512_int8() {
    const __m512i x = _mm512_set1_epi8(1);
    PLAIT_TURNS(__m512i, x, _mm512_dpbusd_epi32(sums[i], x, x))
    return 2.0 * 64 * kSums * kTurns;
}
// Returns the operations of calls of `multiply`, which multiplies four times two tiles of 16 rows by
// `columns` columns.
template <typename Multiply>
double amx(int columns, Multiply multiply) {
    struct {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
    } shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    for (int turn = 0; turn < kTurns; ++turn) multiply();
    asm volatile("tilerelease");
    return 2.0 * 16 * 16 * columns * 4 * kTurns;
}
double amx_int8() {
    return amx(64, [] {
        asm volatile(
            "tdpbssd %tmm5, %tmm4, %tmm0\n\ttdpbssd %tmm5, %tmm4, %tmm1\n\t"
            "tdpbssd %tmm5, %tmm4, %tmm2\n\ttdpbssd %tmm5, %tmm4, %tmm3");
    });
}
double amx_bf16() {
    return amx(32, [] {
        asm volatile(
            "tdpbf16ps %tmm5, %tmm4, %tmm0\n\ttdpbf16ps %tmm5, %tmm4, %tmm1\n\t"
            "tdpbf16ps %tmm5, %tmm4, %tmm2\n\ttdpbf16ps %tmm5, %tmm4, %tmm3");
    });
}
PLAIT_AVX2 double read_avx2(const std::byte* from, size_t bytes) {
    __m256i sum = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes; i += 64)
        sum = _mm256_add_epi8(sum, *reinterpret_cast<const __m256i*>(from + i));
    asm volatile("" : "+x"(sum));
    return static_cast<double>(bytes);
}
#endif

double read_plain(const std::byte* from, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += 64) sum += std::to_integer<uint64_t>(from[i]);
    asm volatile("" : "+r"(sum));
    return static_cast<double>(bytes);
}

// The work that run() returns, per second, in the best of ten runs.
template <typename Run>
double rate(Run run) {
    double best = 0;
    for (int i = 0; i < 10; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const double done = run();
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best = std::max(best, done / time.count());
    }
    return best;
}

Limits measure(Isa isa) {
    constexpr size_t kBytes = size_t{256} << 20;  // several last-level caches
    const std::unique_ptr<Buffer> memory = allocate_host(kBytes);
    std::fill_n(memory->host(), kBytes, std::byte{1});
    const std::byte* from = memory->host();
#if defined(__x86_64__)
    if (isa->panel_lanes > 1) {
        const double read = rate([&] { return read_avx2(from, kBytes); });
        if (isa->panel_lanes == 8) return {read, {rate(avx2_f32), rate(avx2_f32), rate(avx2_int8)}};
        const double f32 = rate(avx512_f32);
        if (isa->has_tiles) return {read, {f32, rate(amx_bf16), rate(amx_int8)}};
        return {read, {f32, rate(avx512_bf16), rate(avx512_int8)}};
    }
#endif
    const double ops = rate(plain_f32);
    return {rate([&] { return read_plain(from, kBytes); }), {ops, ops, ops}};
}

}  // namespace

const Limits& limits(Isa isa) {
    static std::map<Isa, Limits> known;
    const auto found = known.find(isa);
    return found != known.end() ? found->second : known.emplace(isa, measure(isa)).first->second;
}

void report_limit(benchmark::State& state, Isa isa, Unit unit, double bytes, double ops) {
    using benchmark::Counter;
    const Limits& peak = limits(isa);
    const auto rounds = static_cast<double>(state.iterations());
    const double seconds = std::max(bytes / peak.read, ops / peak.ops[static_cast<int>(unit)]);
    if (bytes > 0) state.counters["bytes/s"] = Counter(rounds * bytes, Counter::kIsRate);
    state.counters["ops/s"] = Counter(rounds * ops, Counter::kIsRate);
    state.counters["limit"] = Counter(rounds * seconds, Counter::kIsRate);
}

}  // namespace plait::cpu
