// The instructions of AMX: eight tiles of up to 16 rows of 64 bytes. Written as assembly because
// the intrinsics of compilers differ in the memory that they declare as read and written. Builds with
// a sanitizer emulate them.
#pragma once

#include <stdint.h>

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

struct TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace plait::cpu::PLAIT_ISA

#ifdef PLAIT_EMULATED_TILES
#include "backend/cpu/amx/emulated_tiles.h"
#else

namespace plait::cpu::PLAIT_ISA {

// Configures the tiles while it exists, then restores what was configured before. A library that
// computes in the same thread may rely on its configuration: llama.cpp loads its own once per
// thread. The contents of tiles do not survive. If nothing was configured, the tiles are released:
// otherwise the operating system would save them at every switch of threads.
class OpenTiles {
public:
    PLAIT_INLINE_MEMBER explicit OpenTiles(const TileShapes& shapes) {
        asm volatile("sttilecfg %0" : "=m"(before_));
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    PLAIT_INLINE_MEMBER ~OpenTiles() { asm volatile("ldtilecfg %0" ::"m"(before_) : "memory"); }
    OpenTiles(const OpenTiles&) = delete;
    OpenTiles& operator=(const OpenTiles&) = delete;

private:
    TileShapes before_;
};

template <int kTile>
PLAIT_INLINE void load_tile(const void* from, int64_t step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
PLAIT_INLINE void store_tile(void* to, int64_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
PLAIT_INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// sum += a times b, for BF16. Each row of b holds two rows of its matrix, interleaved.
template <int kSum, int kA, int kB>
PLAIT_INLINE void add_bf16_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}
// sum = a times b, for signed bytes. Each row of b holds four rows of its matrix, interleaved.
template <int kSum, int kA, int kB>
PLAIT_INLINE void multiply_tiles() {
    asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA),
                 "i"(kB));
}

}  // namespace plait::cpu::PLAIT_ISA
#endif

// ---- BF16 numbers as the upper halves of floats, to fill tiles with ----

namespace plait::cpu::PLAIT_ISA {

// The upper halves of two registers: `low` in the lower half of each lane, `high` in the upper half.
PLAIT_INLINE __m512i side_by_side(F32 low, F32 high) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(low.v), 16),
                                     _mm512_castps_si512(high.v),
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000)), 0xf8);
}

// A number as the sum of two whose upper halves matter: x rounded to BF16, and the rest. An F16
// number is that sum without an error.
struct TwoHalves {
    F32 high, low;
};
PLAIT_INLINE TwoHalves split_in_two(F32 x) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x8000));
    const F32 high{_mm512_castsi512_ps(
        _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
    return {high, x - high};
}

}  // namespace plait::cpu::PLAIT_ISA
