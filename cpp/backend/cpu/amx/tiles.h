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
