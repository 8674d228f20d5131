// Q6_K: 256 values as 6-bit integers in 16 groups of 16, each with an 8-bit scale. 6.5625 bits per
// value.
//   value = scale * scales[group] * ((low4 | high2 << 4) - 32)
// The block is two halves of 128 values, each four quarters of 32. In a half's 64 bytes of low and
// 32 of high, value i of quarter q has its low bits in nibble q / 2 of byte 32 (q % 2) + i and its
// high bits in bits [2 q, 2 q + 2) of byte i.
// Layout: block_q6_K in ggml-common.h; decoder: dequantize_row_q6_K in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/fit.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ6_K {
    static constexpr int kElements = 256;
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale;  // f16
};
static_assert(sizeof(BlockQ6_K) == 210);

PLAIT_INLINE void decode(const BlockQ6_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int group = 0; group < 16; ++group) {
        const float step = scale * static_cast<float>(block.scales[group]);
        const int half = group / 8, quarter = group / 2 % 4, first = 16 * (group % 2);
        const uint8_t* low = block.low + 64 * half + 32 * (quarter % 2) + first;
        const uint8_t* high = block.high + 32 * half + first;
        for (int i = 0; i < 16; ++i) {
            const int quant = (low[i] >> (4 * (quarter / 2)) & 15) | (high[i] >> (2 * quarter) & 3)
                                                                         << 4;
            out[16 * group + i] = step * static_cast<float>(quant - 32);
        }
    }
}

// Codes of a group with one step, and the sum of their squared errors.
PLAIT_INLINE float encode_group(const float* values, float step, int* codes) {
    const float inverse = reciprocal(step);
    float error = 0;
    for (int i = 0; i < 16; ++i) {
        codes[i] = round_within(values[i] * inverse, -32, 31);
        const float rest = values[i] - step * static_cast<float>(codes[i]);
        error += rest * rest;
    }
    return error;
}

// Each group's scale is fitted alone; of the 8-bit codes next to it the one with the least error is
// taken.
PLAIT_INLINE void encode(const float* values, BlockQ6_K& block) {
    float scales[16];
    for (int group = 0; group < 16; ++group) scales[group] = fit_scale(values + 16 * group, 16, 32);
    block.scale = f32_to_f16(extreme(scales, 16) / -128);
    const float scale = f16_to_f32(block.scale);
    for (uint8_t& byte : block.low) byte = 0;
    for (uint8_t& byte : block.high) byte = 0;
    for (int group = 0; group < 16; ++group) {
        const float* from = values + 16 * group;
        const int near = round_within(scales[group] * reciprocal(scale), -128, 127);
        int best[16], found = near;
        float least_error = encode_group(from, scale * static_cast<float>(near), best);
        for (int other = near - 1; other <= near + 1; other += 2) {
            if (other < -128 || other > 127) continue;
            int codes[16];
            const float error = encode_group(from, scale * static_cast<float>(other), codes);
            if (!(error < least_error)) continue;
            least_error = error;
            found = other;
            for (int i = 0; i < 16; ++i) best[i] = codes[i];
        }
        block.scales[group] = static_cast<int8_t>(found);
        const int half = group / 8, quarter = group / 2 % 4, first = 16 * (group % 2);
        uint8_t* low = block.low + 64 * half + 32 * (quarter % 2) + first;
        uint8_t* high = block.high + 32 * half + first;
        for (int i = 0; i < 16; ++i) {
            const int code = best[i] + 32;
            low[i] = static_cast<uint8_t>(low[i] | (code & 15) << (4 * (quarter / 2)));
            high[i] = static_cast<uint8_t>(high[i] | (code >> 4) << (2 * quarter));
        }
    }
}

}  // namespace plait
