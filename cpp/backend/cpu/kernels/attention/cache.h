// Conversion of the heads of cache rows from their stored type to floats and back.
#pragma once

#include "backend/cpu/simd/simd.h"
#include "backend/shared/cache_layout.h"
#include "tensor/blocks/closest.h"
#include "tensor/blocks/iq4.h"
#include "tensor/blocks/legacy.h"
#include "tensor/half.h"

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE int64_t block_elements(DType dtype) { return is_float(dtype) ? 1 : 32; }

PLAIT_INLINE int64_t block_bytes(DType dtype) {
    switch (dtype) {
    case DType::f32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::q8_0: return sizeof(BlockQ8_0);
    case DType::q4_0: return sizeof(BlockQ4_0);
    case DType::q4_1: return sizeof(BlockQ4_1);
    case DType::q5_0: return sizeof(BlockQ5_0);
    case DType::q5_1: return sizeof(BlockQ5_1);
    case DType::iq4_nl: return sizeof(BlockIQ4_NL);
    default: return 0;
    }
}

// Blocks begin with the scale, followed by the minimum if they have one.
PLAIT_INLINE F32 scale_of(const void* block) {
    return F32::set_f16(static_cast<const uint16_t*>(block));
}
PLAIT_INLINE F32 minimum_of(const void* block) {
    return F32::set_f16(static_cast<const uint16_t*>(block) + 1);
}

// A register of a row's elements from i on. With a count, lanes past it are unspecified.
struct LoadF32 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        return F32::load(reinterpret_cast<const float*>(row) + i);
    }
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i, int64_t n) {
        return F32::load(reinterpret_cast<const float*>(row) + i, n);
    }
};
struct LoadF16 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        return F32::load_f16(reinterpret_cast<const uint16_t*>(row) + i);
    }
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i, int64_t n) {
        return F32::load_f16(reinterpret_cast<const uint16_t*>(row) + i, n);
    }
};
struct LoadBF16 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        return F32::load_bf16(reinterpret_cast<const uint16_t*>(row) + i);
    }
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i, int64_t n) {
        return F32::load_bf16(reinterpret_cast<const uint16_t*>(row) + i, n);
    }
};
struct LoadQ8_0 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const unsigned char* block = row + i / 32 * static_cast<int64_t>(sizeof(BlockQ8_0));
        const F32 scale = F32::set_f16(reinterpret_cast<const uint16_t*>(block));
        return F32::load_i8(reinterpret_cast<const int8_t*>(block + 2) + i % 32) * scale;
    }
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i, int64_t) {
        return at(row, i);  // the rest of the block is zeros
    }
};

struct LoadQ4_0 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const BlockQ4_0& block = reinterpret_cast<const BlockQ4_0*>(row)[i / 32];
        return (F32::load_nibbles(block.nibbles, i % 32) - F32::set(8)) * scale_of(&block);
    }
};
struct LoadQ4_1 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const BlockQ4_1& block = reinterpret_cast<const BlockQ4_1*>(row)[i / 32];
        return F32::load_nibbles(block.nibbles, i % 32) * scale_of(&block) + minimum_of(&block);
    }
};
struct LoadQ5_0 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const BlockQ5_0& block = reinterpret_cast<const BlockQ5_0*>(row)[i / 32];
        const F32 low = F32::load_nibbles(block.nibbles, i % 32);
        return select_bits(block.fifth >> i % 32, low, low - F32::set(16)) * scale_of(&block);
    }
};
struct LoadQ5_1 {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const BlockQ5_1& block = reinterpret_cast<const BlockQ5_1*>(row)[i / 32];
        const F32 low = F32::load_nibbles(block.nibbles, i % 32);
        const F32 code = select_bits(block.fifth >> i % 32, low + F32::set(16), low);
        return code * scale_of(&block) + minimum_of(&block);
    }
};
struct LoadIQ4_NL {
    PLAIT_INLINE_MEMBER static F32 at(const unsigned char* row, int64_t i) {
        const BlockIQ4_NL& block = reinterpret_cast<const BlockIQ4_NL*>(row)[i / 32];
        return F32::load_levels(block.nibbles, i % 32, kIq4Levels) * scale_of(&block);
    }
};

template <typename Load>
PLAIT_INLINE void decode_with(const unsigned char* source, float* target, int64_t n) {
    int64_t i = 0;
    for (; i + F32::kLanes <= n; i += F32::kLanes) Load::at(source, i).store(target + i);
    if (i < n) Load::at(source, i, n - i).store(target + i, n - i);
}

template <typename Load>
PLAIT_INLINE void decode_blocks(const unsigned char* source, float* target, int64_t n) {
    for (int64_t i = 0; i < n; i += F32::kLanes) Load::at(source, i).store(target + i);
}

template <typename Block>
PLAIT_INLINE void encode_blocks(const float* source, unsigned char* target, int64_t n) {
    Block* blocks = reinterpret_cast<Block*>(target);
    for (int64_t i = 0; i < n / 32; ++i) encode_closest(source + 32 * i, blocks[i]);
}

// target[0 .. n) from stored elements; n is a multiple of the block.
static inline void decode_cache(DType dtype, const unsigned char* source, float* target,
                                int64_t n) {
    switch (dtype) {
    case DType::f32: memcpy(target, source, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::f16: return decode_with<LoadF16>(source, target, n);
    case DType::bf16: return decode_with<LoadBF16>(source, target, n);
    case DType::q8_0: return decode_with<LoadQ8_0>(source, target, n);
    case DType::q4_0: return decode_blocks<LoadQ4_0>(source, target, n);
    case DType::q4_1: return decode_blocks<LoadQ4_1>(source, target, n);
    case DType::q5_0: return decode_blocks<LoadQ5_0>(source, target, n);
    case DType::q5_1: return decode_blocks<LoadQ5_1>(source, target, n);
    case DType::iq4_nl: return decode_blocks<LoadIQ4_NL>(source, target, n);
    default: return;
    }
}

// The reverse, rounding as tensor/blocks/closest.h and tensor/half.h.
static inline void encode_cache(DType dtype, const float* source, unsigned char* target,
                                int64_t n) {
    uint16_t* halves = reinterpret_cast<uint16_t*>(target);
    int64_t i = 0;
    switch (dtype) {
    case DType::f32: memcpy(target, source, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::f16:
        for (; i + F32::kLanes <= n; i += F32::kLanes) F32::load(source + i).store_f16(halves + i);
        F32::load(source + i, n - i).store_f16(halves + i, n - i);
        return;
    case DType::bf16:
        for (; i + F32::kLanes <= n; i += F32::kLanes) F32::load(source + i).store_bf16(halves + i);
        F32::load(source + i, n - i).store_bf16(halves + i, n - i);
        return;
    case DType::q8_0: return encode_blocks<BlockQ8_0>(source, target, n);
    case DType::q4_0: return encode_blocks<BlockQ4_0>(source, target, n);
    case DType::q4_1: return encode_blocks<BlockQ4_1>(source, target, n);
    case DType::q5_0: return encode_blocks<BlockQ5_0>(source, target, n);
    case DType::q5_1: return encode_blocks<BlockQ5_1>(source, target, n);
    case DType::iq4_nl: return encode_blocks<BlockIQ4_NL>(source, target, n);
    default: return;
    }
}

}  // namespace plait::cpu::PLAIT_ISA
