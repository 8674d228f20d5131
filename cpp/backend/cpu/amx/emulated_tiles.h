// The instructions of tiles.h in C++, for builds with a sanitizer: it checks the memory that these
// functions read and write, which it cannot do for assembly, on any processor with AVX-512. Sums are
// those that Intel's manual defines, bit by bit.
#pragma once

#include "base/x86_intrinsics.h"

namespace plait::cpu::PLAIT_ISA {

struct EmulatedTiles {
    static constexpr int kRows = 16, kLanes = 16;
    TileShapes shapes;
    __m512i rows[8][kRows];
};
inline EmulatedTiles& emulated_tiles() {
    static thread_local EmulatedTiles tiles;
    return tiles;
}

class OpenTiles {
public:
    explicit OpenTiles(const TileShapes& shapes) { emulated_tiles().shapes = shapes; }
    ~OpenTiles() { emulated_tiles().shapes = {}; }
    OpenTiles(const OpenTiles&) = delete;
    OpenTiles& operator=(const OpenTiles&) = delete;
};

// The lanes of a tile's rows that it has.
inline __mmask16 tile_lanes(const EmulatedTiles& tiles, int tile) {
    return static_cast<__mmask16>((1u << tiles.shapes.row_bytes[tile] / 4) - 1);
}

template <int kTile>
void clear_tile() {
    for (__m512i& row : emulated_tiles().rows[kTile]) row = _mm512_setzero_si512();
}
template <int kTile>
void load_tile(const void* from, int64_t step) {
    EmulatedTiles& tiles = emulated_tiles();
    clear_tile<kTile>();
    for (int r = 0; r < tiles.shapes.rows[kTile]; ++r)
        tiles.rows[kTile][r] = _mm512_maskz_loadu_epi32(tile_lanes(tiles, kTile),
                                                        static_cast<const char*>(from) + r * step);
}
template <int kTile>
void store_tile(void* to, int64_t step) {
    const EmulatedTiles& tiles = emulated_tiles();
    for (int r = 0; r < tiles.shapes.rows[kTile]; ++r)
        _mm512_mask_storeu_epi32(static_cast<char*>(to) + r * step, tile_lanes(tiles, kTile),
                                 tiles.rows[kTile][r]);
}

// Calls add(index of the row of a, element in all lanes, row of b) for every row of a and every element
// of four bytes in it.
template <int kA, int kB, class Add>
void for_each_element(Add add) {
    EmulatedTiles& tiles = emulated_tiles();
    for (int r = 0; r < tiles.shapes.rows[kA]; ++r)
        for (int k = 0; k < tiles.shapes.row_bytes[kA] / 4; ++k)
            add(r, _mm512_permutexvar_epi32(_mm512_set1_epi32(k), tiles.rows[kA][r]),
                tiles.rows[kB][k]);
}

template <int kSum, int kA, int kB>
void add_bf16_product() {
    __m512 even[EmulatedTiles::kRows] = {}, odd[EmulatedTiles::kRows] = {};
    const auto low = [](__m512i pairs) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    };
    const auto high = [](__m512i pairs) {
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
    };
    for_each_element<kA, kB>([&](int r, __m512i a, __m512i b) {
        even[r] = _mm512_fmadd_ps(low(a), low(b), even[r]);
        odd[r] = _mm512_fmadd_ps(high(a), high(b), odd[r]);
    });
    EmulatedTiles& tiles = emulated_tiles();
    for (int r = 0; r < tiles.shapes.rows[kSum]; ++r) {
        __m512i& sum = tiles.rows[kSum][r];
        sum = _mm512_castps_si512(
            _mm512_add_ps(_mm512_castsi512_ps(sum), _mm512_add_ps(even[r], odd[r])));
    }
}

template <int kSum, int kA, int kB>
void multiply_tiles() {
    clear_tile<kSum>();
    // Signed bytes of a and b: b plus 128 is unsigned, as vpdpbusd requires.
    const __m512i offset = _mm512_set1_epi8(-128), ones = _mm512_set1_epi8(1);
    for_each_element<kA, kB>([&](int r, __m512i a, __m512i b) {
        __m512i& sum = emulated_tiles().rows[kSum][r];
        sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(b, offset), a);
        const __m512i sum_of_a = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, a);
        sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(sum_of_a, 7));
    });
}

}  // namespace plait::cpu::PLAIT_ISA
