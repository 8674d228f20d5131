// How a product reads each block type from a panel: codes of 32 columns as Bytes, and the scales of
// a block.
//
//   BlockDot<Block>
//     kUnit         columns that share a scale: 32 or 16
//     kMaxCode      largest code, as stored in a register
//     kOffset       a value is scale * (code - kOffset)
//     kMinimum      true if a value is scale * code + minimum; kOffset is 0 then
//     kSigned       true if codes are signed bytes; kOffset is 0 then
//     kIsQuick      true if unpacking a code takes at most a load, a shift and a mask
//     code(p, g)    register g of the 32 columns whose words start at p: columns [4 g, 4 g + 4) of
//                   every lane. With lane_bytes == 8: columns [8 (g / 2), 8 (g / 2) + 8) of lanes
//                   2 (g % 2) and 2 (g % 2) + 1. Signed codes of unpacked panels are SignedBytes
//     Scales        open(record), then scale(i) and minimum(i) of the block's unit i
#pragma once

#include "backend/cpu/kernels/products/codes.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu {

// Columns of an unpacked panel. The parameters are constants of the BlockDot of the packed type.
template <int kColumns, int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned,
          bool kIsQuick>
struct BlockUnpacked {
    static constexpr int kElements = kColumns;
};

template <int kColumns, int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned,
          bool kIsQuick>
struct BlockLayout<BlockUnpacked<kColumns, kUnit, kMaxCode, kOffset, kMinimum, kSigned, kIsQuick>> {
    static constexpr int kBits = kSigned ? 16 : 8;
    // The scale of every unit, with its minimum, or with the errors of inverted factors.
    static constexpr int kFloats = kMinimum || kSigned ? 2 : 1;
    static constexpr int kRecord = kColumns / kUnit * kFloats * 4;
    static constexpr int kBlock = kRecord + kColumns * kBits / 8;
};

}  // namespace plait::cpu

namespace plait::cpu::PLAIT_ISA {

constexpr int kLanes = F32::kLanes;
constexpr bool kInPairs = kRow.lane_bytes == 8;

PLAIT_INLINE Bytes nibbles(const uint8_t* p, int g) {
    const Bytes both = Bytes::load(p + (g / 4 * 2 + g % 2) * 4 * kLanes);
    if constexpr (kShiftsBytes)
        if (g & 2) return both.right(4);
    return (g & 2 ? both.right(4) : both) & Bytes::set(15);
}
// Two bits of every byte, shifted to bit `to`.
PLAIT_INLINE Bytes pairs(const uint8_t* p, int g, int to) {
    const Bytes all = Bytes::load(p + (kInPairs ? g % 2 : g / 4) * 4 * kLanes);
    const int from = 2 * (kInPairs ? g / 2 : g % 4);
    const Bytes moved = from < to ? all.left(to - from) : from > to ? all.right(from - to) : all;
    return moved & Bytes::set(static_cast<uint8_t>(3 << to));
}
template <class B = Bytes>
PLAIT_INLINE Bytes bits(const uint8_t* p, int g, int to) {
    B all = B::load(p);
    if constexpr (kInPairs) {
        all = all.spread(g % 2);
        g /= 2;
    }
    const Bytes moved = g < to ? all.left(to - g) : g > to ? all.right(g - to) : all;
    return moved & Bytes::set(static_cast<uint8_t>(1 << to));
}

// The n-th signed byte of each lane, where lane l has p[n * kLanes + l].
PLAIT_INLINE F32 byte_lanes(const uint8_t* p, int n) {
    return F32::load_i8(reinterpret_cast<const int8_t*>(p) + n * kLanes);
}

struct OneScale {
    F32 d;
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        d = F32::load_f16(reinterpret_cast<const uint16_t*>(record));
    }
    PLAIT_INLINE_MEMBER F32 scale(int) const { return d; }
};

struct ScaleAndMinimum : OneScale {
    F32 m;
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        OneScale::open(record);
        m = F32::load_f16(reinterpret_cast<const uint16_t*>(record) + kLanes);
    }
    PLAIT_INLINE_MEMBER F32 minimum(int) const { return m; }
};

struct PowerOfTwo : OneScale {
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        // half_scale() of float4.h: 2^(exponent - 128).
        const F32 signed_exponent = byte_lanes(record, 0), zero = F32::zero();
        d = power_of_two(signed_exponent +
                         select_less(signed_exponent, zero, F32::set(128.0f), F32::set(-128.0f)));
    }
};

// Four E4M3 numbers: half_e4m3() of float4.h.
struct EightBitFloats {
    alignas(64) uint16_t halves[4 * kLanes];
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        // As f16, whose exponent has a larger bias, the same bits are 2^8 times smaller.
        for (int i = 0; i < 4 * kLanes; ++i)
            halves[i] = record[i] == 0x7f ? 0 : static_cast<uint16_t>((record[i] & 0x7f) << 7);
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const {
        return F32::load_f16(halves + i * kLanes) * F32::set(0x1p7f);
    }
};

// Two f16, then the 12 bytes of split_scale_min().
struct SixBitPairs {
    F32 d, m;
    alignas(64) uint8_t scales[8 * kLanes];
    alignas(64) uint8_t minima[8 * kLanes];
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        const auto* halves = reinterpret_cast<const uint16_t*>(record);
        d = F32::load_f16(halves);
        m = negate(F32::load_f16(halves + kLanes));
        const uint8_t* low = record + 4 * kLanes;
        const uint8_t* high = low + 8 * kLanes;
        for (int i = 0; i < 4 * kLanes; ++i) {
            const int h = high[i];
            scales[i] = static_cast<uint8_t>((low[i] & 15) | (h & 3) << 4);
            scales[i + 4 * kLanes] =
                static_cast<uint8_t>((low[i + 4 * kLanes] & 15) | (h << 2 & 0x30));
            minima[i] = static_cast<uint8_t>(low[i] >> 4 | (h & 0x30));
            minima[i + 4 * kLanes] =
                static_cast<uint8_t>(low[i + 4 * kLanes] >> 4 | (h >> 2 & 0x30));
        }
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return d * byte_lanes(scales, i); }
    PLAIT_INLINE_MEMBER F32 minimum(int i) const { return m * byte_lanes(minima, i); }
};

struct EightBitScales : OneScale {
    const uint8_t* scales;
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        OneScale::open(record);
        scales = record + 2 * kLanes;
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return d * byte_lanes(scales, i); }
};

// Sixteen 6-bit scales as in scale6() of q3_k.h, minus 32.
struct SixBitScales : OneScale {
    alignas(64) uint8_t scales[16 * kLanes];
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        OneScale::open(record);
        const uint8_t* low = record + 2 * kLanes;
        const uint8_t* high = low + 8 * kLanes;
        for (int half = 0; half < 4; ++half) {
            for (int i = 0; i < 4 * kLanes; ++i) {
                const int l = low[half % 2 * 4 * kLanes + i] >> (half / 2 * 4) & 15;
                const int h = high[i] >> (2 * half) & 3;
                scales[half * 4 * kLanes + i] = static_cast<uint8_t>((l | h << 4) - 32);
            }
        }
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return d * byte_lanes(scales, i); }
};

// Eight 6-bit scales in the six bytes of split() for IQ4_XS, minus 32.
struct SixBitGroups : OneScale {
    alignas(64) uint8_t scales[8 * kLanes];
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        OneScale::open(record);
        const uint8_t* low = record + 2 * kLanes;
        const uint8_t* high = low + 4 * kLanes;
        for (int quarter = 0; quarter < 4; ++quarter) {
            for (int i = 0; i < 2 * kLanes; ++i) {
                const int l = low[quarter % 2 * 2 * kLanes + i] >> (quarter / 2 * 4) & 15;
                const int h = high[i] >> (2 * quarter) & 3;
                scales[quarter * 2 * kLanes + i] = static_cast<uint8_t>((l | h << 4) - 32);
            }
        }
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return d * byte_lanes(scales, i); }
};

// Two f16, then 16 bytes: the scale in the low nibble, the minimum in the high one.
struct FourBitPairs {
    F32 d, m;
    alignas(64) uint8_t scales[16 * kLanes];
    alignas(64) uint8_t minima[16 * kLanes];
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        const auto* halves = reinterpret_cast<const uint16_t*>(record);
        d = F32::load_f16(halves);
        m = negate(F32::load_f16(halves + kLanes));
        const uint8_t* both = record + 4 * kLanes;
        for (int i = 0; i < 16 * kLanes; ++i) {
            scales[i] = both[i] & 15;
            minima[i] = static_cast<uint8_t>(both[i] >> 4);
        }
    }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return d * byte_lanes(scales, i); }
    PLAIT_INLINE_MEMBER F32 minimum(int i) const { return m * byte_lanes(minima, i); }
};

// Codes that are the values, plus an offset.
template <int kUnit_, int kMaxCode_, int kOffset_, class Scales_, bool kMinimum_ = false>
struct Plain {
    using Scales = Scales_;
    static constexpr int kUnit = kUnit_, kMaxCode = kMaxCode_, kOffset = kOffset_;
    static constexpr bool kMinimum = kMinimum_, kSigned = false;
};

template <class Block>
struct BlockDot;

struct Dot4 {
    static constexpr bool kIsQuick = true;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) { return nibbles(p, g); }
};
struct Dot5 {
    static constexpr bool kIsQuick = false;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        return nibbles(p, g) | bits(p + 16 * kLanes, g, 4);
    }
};
struct Dot6 {
    static constexpr bool kIsQuick = false;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        return nibbles(p, g) | pairs(p + 16 * kLanes, g, 4);
    }
};

template <>
struct BlockDot<BlockQ4_0> : Plain<32, 15, 8, OneScale>, Dot4 {};
template <>
struct BlockDot<BlockQ4_1> : Plain<32, 15, 0, ScaleAndMinimum, true>, Dot4 {};
template <>
struct BlockDot<BlockQ5_0> : Plain<32, 31, 16, OneScale>, Dot5 {};
template <>
struct BlockDot<BlockQ5_1> : Plain<32, 31, 0, ScaleAndMinimum, true>, Dot5 {};
template <>
struct BlockDot<BlockQ4_K> : Plain<32, 15, 0, SixBitPairs, true>, Dot4 {};
template <>
struct BlockDot<BlockQ5_K> : Plain<32, 31, 0, SixBitPairs, true>, Dot5 {};
template <>
struct BlockDot<BlockQ6_K> : Plain<16, 63, 32, EightBitScales>, Dot6 {};

// Two bits, of which 1 stands for 0.
struct Dot2 {
    static constexpr bool kIsQuick = true;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) { return pairs(p, g, 0); }
};
template <>
struct BlockDot<BlockTQ2_0> : Plain<32, 3, 1, OneScale>, Dot2 {};
template <>
struct BlockDot<BlockQ2_0> : Plain<32, 3, 1, OneScale>, Dot2 {};

// One bit: 0 for -1, and 1, as 2, for 1.
template <>
struct BlockDot<BlockQ1_0> : Plain<32, 2, 1, OneScale> {
    static constexpr bool kIsQuick = true;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) { return bits(p, g, 1); }
};

template <>
struct BlockDot<BlockQ2_K> : Plain<16, 3, 0, FourBitPairs, true>, Dot2 {};
template <>
struct BlockDot<BlockQ3_K> : Plain<16, 7, 4, SixBitScales> {
    static constexpr bool kIsQuick = false;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        return pairs(p, g, 0) | bits(p + 8 * kLanes, g, 2);
    }
};

template <class Scales_>
struct EightBit {
    using Scales = Scales_;
    static constexpr int kUnit = 32, kMaxCode = 255, kOffset = kUnsignedDot ? 128 : 0;
    static constexpr bool kMinimum = false, kSigned = !kUnsignedDot;
};

template <>
struct BlockDot<BlockQ8_0> : EightBit<OneScale> {
    static constexpr bool kIsQuick = !kSigned;  // signed codes are split into magnitude and sign
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        return Bytes::load(p + g * 4 * kLanes);
    }
};

// kIq4Levels plus kOffset.
struct Iq4Levels {
    static constexpr bool kIsQuick = false;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        constexpr int o = kUnsignedDot ? 128 : 0;
        static constexpr uint8_t kTable[16] = {
            (uint8_t)(o - 127), (uint8_t)(o - 104), (uint8_t)(o - 83), (uint8_t)(o - 65),
            (uint8_t)(o - 49),  (uint8_t)(o - 35),  (uint8_t)(o - 22), (uint8_t)(o - 10),
            (uint8_t)(o + 1),   (uint8_t)(o + 13),  (uint8_t)(o + 25), (uint8_t)(o + 38),
            (uint8_t)(o + 53),  (uint8_t)(o + 69),  (uint8_t)(o + 89), (uint8_t)(o + 113)};
        return lookup(Bytes::table(kTable), nibbles(p, g));
    }
};
template <>
struct BlockDot<BlockIQ4_NL> : EightBit<OneScale>, Iq4Levels {};
template <>
struct BlockDot<BlockIQ4_XS> : EightBit<SixBitGroups>, Iq4Levels {};

// kE2m1Doubled plus 12.
struct E2m1Doubled {
    static constexpr bool kIsQuick = false;
    PLAIT_INLINE_MEMBER static Bytes code(const uint8_t* p, int g) {
        static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                               12, 11, 10, 9,  8,  6,  4,  0};
        return lookup(Bytes::table(kTable), nibbles(p, g));
    }
};
template <>
struct BlockDot<BlockMXFP4> : Plain<32, 24, 12, PowerOfTwo>, E2m1Doubled {};
template <>
struct BlockDot<BlockNVFP4> : Plain<16, 24, 12, EightBitFloats>, E2m1Doubled {};

// ---- Unpacked panels: a byte for each code, or its magnitude and sign, and floats for scales. ----

template <class D>
using UnpackedBlock =
    BlockUnpacked<32, D::kUnit, D::kMaxCode, D::kOffset, D::kMinimum, D::kSigned, D::kIsQuick>;

template <class Block>
constexpr bool kIsUnpacked = false;

template <int kColumns, int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned,
          bool kIsQuick>
constexpr bool
    kIsUnpacked<BlockUnpacked<kColumns, kUnit, kMaxCode, kOffset, kMinimum, kSigned, kIsQuick>> =
        true;

template <bool kSigned>
struct UnpackedCode {
    using Type = Bytes;
};
template <>
struct UnpackedCode<true> {
    using Type = SignedBytes;
};

template <int kFloats>
struct UnpackedScales {
    const float* record;
    PLAIT_INLINE_MEMBER void open(const uint8_t* p) { record = reinterpret_cast<const float*>(p); }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return F32::load(record + i * kFloats * kLanes); }
    PLAIT_INLINE_MEMBER F32 minimum(int i) const {
        return F32::load(record + (i * kFloats + 1) * kLanes);
    }
    PLAIT_INLINE_MEMBER F32 error(int i) const { return minimum(i); }
};

template <int kColumns, int kUnit_, int kMaxCode_, int kOffset_, bool kMinimum_, bool kSigned_,
          bool kIsQuick_>
struct BlockDot<
    BlockUnpacked<kColumns, kUnit_, kMaxCode_, kOffset_, kMinimum_, kSigned_, kIsQuick_>> {
    using Block =
        BlockUnpacked<kColumns, kUnit_, kMaxCode_, kOffset_, kMinimum_, kSigned_, kIsQuick_>;
    using Scales = UnpackedScales<BlockLayout<Block>::kFloats>;
    using Code = typename UnpackedCode<kSigned_>::Type;
    static constexpr int kUnit = kUnit_, kMaxCode = kMaxCode_, kOffset = kOffset_;
    static constexpr bool kMinimum = kMinimum_, kSigned = kSigned_, kIsQuick = kIsQuick_;
    PLAIT_INLINE_MEMBER static Code code(const uint8_t* p, int g) {
        return Code::load(p + g * (BlockLayout<Block>::kBits / 2 * kLanes));
    }
};

}  // namespace plait::cpu::PLAIT_ISA
