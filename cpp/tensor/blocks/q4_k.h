// Q4_K: 256 values as 4-bit integers in 8 groups of 32, each with a 6-bit scale and minimum.
// 4.5 bits per value.
//   value[32 g + i] = scale * scale6(g) * nibble - minimum * minimum6(g)
// Bytes [32 p, 32 p + 32) of nibbles hold group 2 p (low) and group 2 p + 1 (high).
// Layout: block_q4_K in ggml-common.h; decoder: dequantize_row_q4_K in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/fit.h"
#include "tensor/blocks/scale_min.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ4_K {
    static constexpr int kElements = 256;
    uint16_t scale;      // f16
    uint16_t minimum;    // f16
    uint8_t scales[12];  // see scale_min
    uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

PLAIT_INLINE void decode(const BlockQ4_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(block.scales, group);
        const float step = scale * static_cast<float>(packed.scale);
        const float base = minimum * static_cast<float>(packed.minimum);
        const uint8_t* nibbles = block.nibbles + 32 * (group / 2);
        const int shift = 4 * (group % 2);
        for (int i = 0; i < 32; ++i) {
            out[32 * group + i] = step * static_cast<float>(nibbles[i] >> shift & 15) - base;
        }
    }
}

// Codes of a group on one line, and the sum of their squared errors.
PLAIT_INLINE float encode_group(const float* values, Line line, int* codes) {
    const float inverse = reciprocal(line.scale);
    float error = 0;
    for (int i = 0; i < 32; ++i) {
        codes[i] = round_within((values[i] + line.minimum) * inverse, 0, 15);
        const float rest = values[i] - (line.scale * static_cast<float>(codes[i]) - line.minimum);
        error += rest * rest;
    }
    return error;
}

// Each group's line is fitted alone; of the 6-bit codes next to its scale and its minimum the pair
// with the least error is taken.
PLAIT_INLINE void encode(const float* values, BlockQ4_K& block) {
    Line lines[8];
    float most_scale = 0, most_minimum = 0;
    for (int group = 0; group < 8; ++group) {
        lines[group] = fit_line(values + 32 * group, 32, 15);
        if (lines[group].scale > most_scale) most_scale = lines[group].scale;
        if (lines[group].minimum > most_minimum) most_minimum = lines[group].minimum;
    }
    block.scale = f32_to_f16(most_scale / 63);
    block.minimum = f32_to_f16(most_minimum / 63);
    const float scale = f16_to_f32(block.scale), minimum = f16_to_f32(block.minimum);
    for (uint8_t& byte : block.scales) byte = 0;
    for (uint8_t& byte : block.nibbles) byte = 0;
    for (int group = 0; group < 8; ++group) {
        const int near_scale = round_within(lines[group].scale * reciprocal(scale), 0, 63);
        const int near_minimum = round_within(lines[group].minimum * reciprocal(minimum), 0, 63);
        ScaleMin found{near_scale, near_minimum};
        int best[32] = {};
        float least_error = __builtin_inff();
        for (int s = near_scale - 1; s <= near_scale + 1; ++s) {
            for (int m = near_minimum - 1; m <= near_minimum + 1; ++m) {
                if (s < 0 || s > 63 || m < 0 || m > 63) continue;
                int codes[32];
                const Line line{scale * static_cast<float>(s), minimum * static_cast<float>(m)};
                const float error = encode_group(values + 32 * group, line, codes);
                if (!(error < least_error)) continue;
                least_error = error;
                found = {s, m};
                for (int i = 0; i < 32; ++i) best[i] = codes[i];
            }
        }
        set_scale_min(block.scales, group, found);
        uint8_t* nibbles = block.nibbles + 32 * (group / 2);
        const int shift = 4 * (group % 2);
        for (int i = 0; i < 32; ++i) {
            nibbles[i] = static_cast<uint8_t>(nibbles[i] | best[i] << shift);
        }
    }
}

}  // namespace plait
