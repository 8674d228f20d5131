// One lane: four bytes in a word, first byte lowest. See simd/dot.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

constexpr bool kUnsignedDot = false;
constexpr float kSumsBase = 0.0f;
constexpr bool kShiftsBytes = false;
constexpr int kMinRowsForInverted = 64;

struct TileShape {
    static constexpr bool kSharesPrefetches = true;
    static constexpr bool kWideForSlowCodes = false;
    static constexpr int kWidePanels = 1;
    static constexpr int kHighPanels = 1;
    static constexpr int kBlockPanelsOfOneRow = 1;
    static constexpr bool kReadsPanelsInTurn = false;
    static constexpr bool kStartsAtOffset = false;
    static constexpr int kFloatRows = 4;
    static constexpr int kFloatPanels = 3;
    static constexpr int kPanelsOfOneRow = 8;
    static constexpr int kHalfPanelsOfOneRow = 8;
};

struct Bytes {
    uint32_t v;
    const uint8_t* entries = nullptr;  // of a table

    PLAIT_INLINE_MEMBER static Bytes load(const uint8_t* p) {
        Bytes bytes{0};
        memcpy(&bytes.v, p, 4);
        return bytes;
    }
    PLAIT_INLINE_MEMBER static Bytes set(uint8_t x) { return {x * 0x01010101u}; }
    PLAIT_INLINE_MEMBER static Bytes four(const int8_t* row, int group) {
        return load(reinterpret_cast<const uint8_t*>(row + 4 * group));
    }
    PLAIT_INLINE_MEMBER static Bytes table(const uint8_t* p) { return {0, p}; }
    PLAIT_INLINE_MEMBER Bytes left(int n) const { return {v << n}; }
    PLAIT_INLINE_MEMBER Bytes right(int n) const { return {v >> n}; }
};

PLAIT_INLINE Bytes operator&(Bytes a, Bytes b) { return {a.v & b.v}; }
PLAIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {a.v | b.v}; }
PLAIT_INLINE Bytes lookup(Bytes table, Bytes index) {
    Bytes found{0};
    for (int i = 0; i < 32; i += 8)
        found.v |= static_cast<uint32_t>(table.entries[index.v >> i & 15]) << i;
    return found;
}

struct Sums {
    int32_t v = 0;

    template <Signs kSigns, int kGroups>
    PLAIT_INLINE_MEMBER void add(Bytes codes, Bytes a, int) {
        for (int i = 0; i < 32; i += 8) {
            const int code = kSigns != Signs::kUnsigned ? static_cast<int8_t>(codes.v >> i)
                                                        : static_cast<int>(codes.v >> i & 255);
            v += code * static_cast<int8_t>(a.v >> i);
        }
    }
    PLAIT_INLINE_MEMBER F32 value() const { return {static_cast<float>(v)}; }
};

PLAIT_INLINE void store_codes(const F32 (&x)[32], int8_t* to, int16_t* sums) {
    int sum[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
        to[i] = static_cast<int8_t>(__builtin_nearbyintf(x[i].v));
        sum[i / 16] += to[i];
    }
    for (int half = 0; half < 2; ++half) sums[half] = static_cast<int16_t>(sum[half]);
}

using DotBF16 = ColumnBF16;

}  // namespace plait::cpu::PLAIT_ISA
