// The table of instruction sets of the CPU backend, best first. Kernels are compiled for each of
// them. At run time, the first one that the build contains and the processor supports is used.
//
// To add an instruction set, SVE for example:
//   1. kIsas, below: its row, at its place in the order of preference. A processor feature that no
//      other row requires is added to CpuFeature and detected in isa.cpp.
//   2. CMakeLists.txt: one plait_kernels() line with the compiler's flags.
//   3. sve/registers.h, sve/dot.h and sve/expand.h in this folder: its registers, dot products and
//      decoders of few bits, as simd.h, dot.h and expanded_product.h describe them.
// Nothing else names an instruction set; tests/test_isa_recipe.py follows these steps.
#pragma once

#include <stdint.h>

#include "base/inline.h"

namespace plait::cpu {

// Processor features that instruction sets require, as bits.
enum CpuFeature : uint32_t {
    kAvx2 = 1u << 0,
    kFma = 1u << 1,
    kF16c = 1u << 2,
    kBmi2 = 1u << 3,
    kAvx512f = 1u << 4,
    kAvx512bw = 1u << 5,
    kAvx512vl = 1u << 6,
    kAvx512dq = 1u << 7,
    kAvx512vnni = 1u << 8,
    kAvx512vbmi = 1u << 9,
    kAvx512bf16 = 1u << 10,
    kAmx = 1u << 11,  // tiles of bytes and BF16, including the operating system's permission
    kNeonDot = 1u << 12,
    kNeonI8mm = 1u << 13,
    kNeonBf16 = 1u << 14,
    kOpenBlas = 1u << 15,  // the library can be used: not a feature of the processor
};

struct IsaInfo {
    const char* name;   // of its namespace, its folder in simd/, PLAIT_ISA and Context(isa=...)
    uint32_t required;  // CpuFeatures

    // Rows of a packed panel: the floats of a register.
    int32_t panel_lanes;
    // Bytes of one row that are side by side in a packed panel of a block type: 4, or 8 if there are
    // products of 8-bit matrices (2 x 8 by 8 x 2). With 8, BF16 panels are also packed for products
    // of matrices (2 x 4 by 4 x 2) if bf16_dot_is_fast.
    int32_t lane_bytes;
    // Panels in a register tile of a product of many rows with float weights.
    int32_t float_tile_panels;
    // There are dot products of unsigned with signed bytes. Q8_0 codes are then stored plus 128.
    bool has_unsigned_byte_dot;
    // Matrix tiles multiply many rows with block types, and any rows with F16 and BF16 (amx/).
    bool has_tiles;
    // Dot products of BF16 pairs are as fast as an fma. Zen 4 does twice the work in the same time;
    // processors with AMX take four times as long (docs/decisions/0016).
    bool bf16_dot_is_fast;
    // Widening a task's F16 panels to f32 once pays for many rows: 105 instead of 97 G operations a
    // second on one thread of a Zen 4 (docs/decisions/0021). With 8 lanes nothing is gained.
    bool widens_f16_panels;
    // Panels of block types are unpacked once for many rows. dot.h defines SignedBytes, which the
    // unpacked form of signed codes has.
    bool unpacks_panels;
    // Blocks of few bits are expanded for all lanes at once, from panels that have them word by word
    // (packed.h).
    bool packs_words;

    // The bits of a row of a product do not depend on the other rows.
    PLAIT_INLINE_MEMBER constexpr bool is_invariant() const { return (required & kOpenBlas) == 0; }
};

constexpr uint32_t kAvx2Features = kAvx2 | kFma | kF16c | kBmi2;
constexpr uint32_t kAvx512Features = kAvx2Features | kAvx512f | kAvx512bw | kAvx512vl | kAvx512dq |
                                     kAvx512vnni | kAvx512vbmi | kAvx512bf16;

// clang-format off
inline constexpr IsaInfo kIsas[] = {
    {.name = "amx", .required = kAvx512Features | kAmx,
     .panel_lanes = 16, .lane_bytes = 4, .float_tile_panels = 2, .has_unsigned_byte_dot = true,
     .has_tiles = true, .bf16_dot_is_fast = false, .widens_f16_panels = true,
     .unpacks_panels = false, .packs_words = true},
    {.name = "avx512", .required = kAvx512Features,
     .panel_lanes = 16, .lane_bytes = 4, .float_tile_panels = 2, .has_unsigned_byte_dot = true,
     .has_tiles = false, .bf16_dot_is_fast = true, .widens_f16_panels = true,
     .unpacks_panels = false, .packs_words = true},
    {.name = "avx2", .required = kAvx2Features,
     .panel_lanes = 8, .lane_bytes = 4, .float_tile_panels = 3, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = false, .widens_f16_panels = false,
     .unpacks_panels = true, .packs_words = false},
    {.name = "neon_bf16", .required = kNeonDot | kNeonI8mm | kNeonBf16,
     .panel_lanes = 4, .lane_bytes = 8, .float_tile_panels = 4, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = true, .widens_f16_panels = false,
     .unpacks_panels = false, .packs_words = false},
    {.name = "neon_i8mm", .required = kNeonDot | kNeonI8mm,
     .panel_lanes = 4, .lane_bytes = 8, .float_tile_panels = 4, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = false, .widens_f16_panels = false,
     .unpacks_panels = false, .packs_words = false},
    {.name = "neon", .required = kNeonDot,
     .panel_lanes = 4, .lane_bytes = 4, .float_tile_panels = 4, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = false, .widens_f16_panels = false,
     .unpacks_panels = false, .packs_words = false},
    {.name = "blas", .required = kOpenBlas,
     .panel_lanes = 1, .lane_bytes = 4, .float_tile_panels = 3, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = false, .widens_f16_panels = false,
     .unpacks_panels = false, .packs_words = false},
    {.name = "scalar", .required = 0,
     .panel_lanes = 1, .lane_bytes = 4, .float_tile_panels = 3, .has_unsigned_byte_dot = false,
     .has_tiles = false, .bf16_dot_is_fast = false, .widens_f16_panels = false,
     .unpacks_panels = false, .packs_words = false},
};
// clang-format on

PLAIT_INLINE constexpr bool same_name(const char* a, const char* b) {
    while (*a != '\0' && *a == *b) {
        ++a;
        ++b;
    }
    return *a == *b;
}

// The row of that name. Only for constant expressions, which do not compile without such a row.
PLAIT_INLINE constexpr const IsaInfo& isa_row(const char* name) {
    const IsaInfo* row = kIsas;
    while (!same_name(row->name, name)) ++row;
    return *row;
}

}  // namespace plait::cpu
