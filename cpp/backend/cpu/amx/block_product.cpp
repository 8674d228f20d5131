// Products of many rows with block types on AMX, with the bits of AVX-512. The columns are
// processed in strips: the rows of a strip are laid out as tiles, then each panel's part of the
// strip is unpacked to signed bytes and multiplied. docs/decisions/0016 has the reasons and
// measurements.
//
// A register of codes, four columns of each lane, already has the layout of a row of the right-hand
// tile. The integer sums are those that VNNI computes, and the float operations after them are the
// same in the same order, so every output has the bits that it has with AVX-512.
#include "backend/cpu/amx/products.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/products/expanded_product.h"
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::amx {
namespace {

constexpr int64_t kMinRows = 32;    // a product of fewer rows is as fast without tiles
constexpr int kTileHigh = 16;       // rows of a tile
constexpr int kStripColumns = 512;  // columns of a strip
constexpr int kPassRows = 512;      // max rows for which a panel is unpacked once
constexpr int kPassPanels = 32;     // max panels for which rows are laid out once

// Tasks are not made smaller than this.
constexpr int64_t kMinTaskPanels = 4, kMinTaskTileRows = 4 * kTileHigh;

// The scratch of a thread. A strip has units of 32 columns, and steps of 32 or 16 columns that
// share a scale.
struct TileScratch {
    static constexpr int kTiles = kPassRows / kTileHigh, kUnits = kStripColumns / 32;
    static constexpr int kAhead = 3;  // units that are multiplied before they are needed

    // The rows of the strip, tile after tile.
    alignas(64) int8_t a[(kTiles * kUnits + kAhead) * kTileHigh * 32];  // [units][16][32]
    alignas(64) float a_scales[kTiles * kUnits * kTileHigh];            // [units][16]
    alignas(64) float a_sums[kTiles * kUnits * 2 * kTileHigh];          // [steps][16]
    // The strip's part of one panel.
    alignas(64) int8_t b[(kUnits + kAhead) * 32 * 16];  // [units][8][16 lanes][4]
    alignas(64) float scales[kUnits * 2 * 16];          // [steps][16 lanes]
    alignas(64) float lifts[kUnits * 2 * 16];
    alignas(64) float minima[kUnits * 2 * 16];
    alignas(64) int32_t sums[4 * kTileHigh * 16];  // of four steps
    alignas(64) unsigned char expanded[kStripColumns / 4 * 5 * 16];
    // The results of every panel.
    alignas(64) float y[kPassPanels * kPassRows * 16];
};

constexpr int kUnitBytes = 32 * 16;        // bytes of a unit, of a tile of rows or of a panel
constexpr int kSums = kTileHigh * kLanes;  // sums of a tile
constexpr int kSumBase = 0x4b400000;       // the bits of kSumsBase

// ---- The rows of a strip ----

struct Strip {
    const Product& product;
    TileScratch& scratch;
    int64_t first_row, rows;  // rows of the product
    int64_t first_unit;       // of the strip
    int used, units;  // units of columns, and with those that pad the strip, which are zeros

    int tiles() const { return static_cast<int>((rows + kTileHigh - 1) / kTileHigh); }
};

template <int kSteps>
PLAIT_INLINE void put_sums(const int16_t* from, float* to) {
    if constexpr (kSteps == 1) {
        to[0] = static_cast<float>(from[0] + from[1]);
    } else {
        to[0] = from[0];
        to[kTileHigh] = from[1];
    }
}

// Lays out rows [lane, lane + 8) of a tile, which are interleaved in memory.
template <int kSteps, bool kMinimum>
void lay_group(const Strip& s, const QuantizedRow& from, int64_t unit, int lane) {
    TileScratch& to = s.scratch;
    for (int64_t u = 0; u < s.used; ++u) {
        const int8_t* codes = from.block_codes(s.first_unit + u);
        int8_t* a = to.a + (unit + u) * kUnitBytes + lane * 32;
        for (int i = 0; i < 256; i += 64)
            Bytes::load(reinterpret_cast<const uint8_t*>(codes + i)).store(a + i);
        const float* scales = from.block_scale(s.first_unit + u);
        memcpy(to.a_scales + (unit + u) * kTileHigh + lane, scales, 32);
        if constexpr (kMinimum) {
            const int16_t* sums = from.block_sums(s.first_unit + u);
            float* a_sums = to.a_sums + (unit + u) * kSteps * kTileHigh + lane;
            for (int r = 0; r < 8; ++r) put_sums<kSteps>(sums + 2 * r, a_sums + r);
        }
    }
}

template <int kSteps, bool kMinimum>
void lay_row(const Strip& s, const QuantizedRow& from, int64_t unit, int lane) {
    TileScratch& to = s.scratch;
    for (int64_t u = 0; u < s.used; ++u) {
        memcpy(to.a + (unit + u) * kUnitBytes + lane * 32, from.block_codes(s.first_unit + u), 32);
        to.a_scales[(unit + u) * kTileHigh + lane] = *from.block_scale(s.first_unit + u);
        if constexpr (kMinimum)
            put_sums<kSteps>(from.block_sums(s.first_unit + u),
                             to.a_sums + (unit + u) * kSteps * kTileHigh + lane);
    }
}

// Lays out the rows of a strip. Missing rows, and units that pad the strip, have scales of zero and
// add nothing.
template <int kSteps, bool kMinimum>
void lay_rows(const Strip& s) {
    const Product& p = s.product;
    TileScratch& to = s.scratch;
    auto* x = const_cast<unsigned char*>(p.x);  // only read
    const int64_t columns = p.weight->columns;
    const auto row = [&](int64_t i) {
        return quantized_row(x, p.x_rows, columns, p.row(s.first_row + i) / p.x_share);
    };
    const auto clear = [&](int64_t unit, int64_t units) {
        memset(to.a + unit * kUnitBytes, 0, static_cast<size_t>(units * kUnitBytes));
        const auto floats = static_cast<size_t>(units * kTileHigh) * sizeof(float);
        memset(to.a_scales + unit * kTileHigh, 0, floats);
        if constexpr (kMinimum) memset(to.a_sums + unit * kSteps * kTileHigh, 0, kSteps * floats);
    };
    for (int tile = 0; tile < s.tiles(); ++tile) {
        const int64_t unit = int64_t{tile} * s.units, first = int64_t{tile} * kTileHigh;
        if (first + kTileHigh > s.rows)
            clear(unit, s.units);
        else
            clear(unit + s.used, s.units - s.used);
        for (int lane = 0; lane < kTileHigh; lane += 8) {
            const int64_t left = s.rows - first - lane;
            if (left <= 0) break;
            const QuantizedRow group = row(first + lane);
            if (p.in_place() && group.step == kRowGroup) {
                lay_group<kSteps, kMinimum>(s, group, unit, lane);
                continue;
            }
            for (int r = 0; r < 8 && r < left; ++r)
                lay_row<kSteps, kMinimum>(s, row(first + lane + r), unit, lane + r);
        }
    }
    memset(to.a + s.tiles() * s.units * kUnitBytes, 0, TileScratch::kAhead * kUnitBytes);
}

// ---- A panel's part of a strip ----

// The place of a panel's part.
struct Part {
    const unsigned char* blocks;
    int64_t bytes;
};

// Unpacks a panel's part: signed codes, scales, and `lifts`, the products -scale * kSumsBase.
// Returns true if all lifts are exact.
template <class Block>
bool unpack(const Strip& s, const uint8_t* at) {
    using D = BlockDot<Block>;
    constexpr int kSteps = 32 / D::kUnit;
    TileScratch& to = s.scratch;
    const F32 base = F32::set(kSumsBase);
    F32 error = F32::zero();
    int step = 0;
    for (int unit = 0; unit < s.used;) {
        typename D::Scales scales;
        scales.open(at);
        at += BlockLayout<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b, ++unit) {
            for (int g = 0; g < 8; ++g)
                (D::code(at, g) - Bytes::set(D::kOffset))
                    .store(to.b + unit * kUnitBytes + g * 4 * kLanes);
            at += 4 * kLanes * BlockLayout<Block>::kBits;
            for (int u = 0; u < kSteps; ++u, ++step) {
                const F32 scale = scales.scale(b * kSteps + u);
                const F32 lift = negate(scale * base);
                error = error + abs(fma(scale, base, lift));
                scale.store(to.scales + step * kLanes);
                lift.store(to.lifts + step * kLanes);
                if constexpr (D::kMinimum)
                    scales.minimum(b * kSteps + u).store(to.minima + step * kLanes);
            }
        }
    }
    for (; step < s.units * kSteps; ++step) {
        F32::zero().store(to.scales + step * kLanes);
        F32::zero().store(to.lifts + step * kLanes);
        if constexpr (D::kMinimum) F32::zero().store(to.minima + step * kLanes);
    }
    memset(to.b + s.used * kUnitBytes, 0, static_cast<size_t>(s.units - s.used) * kUnitBytes);
    memcpy(to.b + s.units * kUnitBytes, to.b, TileScratch::kAhead * kUnitBytes);
    return sum(error) == 0.0f;
}

// ---- The product of both ----

// A pipeline of three stages, each working on a different unit: tiles are multiplied, the sums of
// an earlier unit are stored, and the sums that were stored before are scaled and added to y.
template <int kSteps, bool kMinimum, bool kLifted>
struct Steps {
    static constexpr int kRing = 4 / kSteps;  // units
    static constexpr int kAhead = kSteps == 1 ? 3 : 2;
    const int8_t *a, *b;  // of the unit in the last stage
    const float *a_scales, *a_sums;
    const float *scales, *lifts, *minima;
    int32_t* sums;
    F32 y[kTileHigh];

    template <int kSlot>
    PLAIT_INLINE_MEMBER void multiply(int ahead) {
        constexpr int kTile = kSlot % kRing * kSteps;
        load_tile<4>(a + ahead * kUnitBytes, 32);
        load_tile<6>(b + ahead * kUnitBytes, 4 * kLanes);
        multiply_tiles<kTile, 4, 6>();
        if constexpr (kSteps == 2) {
            load_tile<5>(a + ahead * kUnitBytes + 16, 32);
            load_tile<7>(b + ahead * kUnitBytes + kUnitBytes / 2, 4 * kLanes);
            multiply_tiles<kTile + 1, 5, 7>();
        }
    }
    template <int kSlot>
    PLAIT_INLINE_MEMBER void keep() {
        constexpr int kTile = kSlot % kRing * kSteps;
        store_tile<kTile>(sums + kTile * kSums, 4 * kLanes);
        if constexpr (kSteps == 2) store_tile<kTile + 1>(sums + (kTile + 1) * kSums, 4 * kLanes);
    }
    template <int kSlot>
    PLAIT_INLINE_MEMBER void add() {
        const __m512i* from = reinterpret_cast<const __m512i*>(sums + kSlot * kSteps * kSums);
        const __m512i bits = _mm512_set1_epi32(kSumBase);
        const F32 base = F32::set(kSumsBase);
        F32 scale[kSteps], lift[kSteps], minimum[kSteps];
#pragma GCC unroll 2
        for (int u = 0; u < kSteps; ++u) {
            scale[u] = F32::load(scales + u * kLanes);
            lift[u] = F32::load(lifts + u * kLanes);
            if constexpr (kMinimum) minimum[u] = F32::load(minima + u * kLanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kTileHigh; ++r) {
            F32 t;
#pragma GCC unroll 2
            for (int u = 0; u < kSteps; ++u) {
                const F32 x{_mm512_castsi512_ps(
                    _mm512_add_epi32(_mm512_load_si512(from + u * kTileHigh + r), bits))};
                if (u > 0)
                    t = fma(scale[u], x - base, t);
                else if constexpr (kLifted)
                    t = fma(scale[u], x, lift[u]);
                else
                    t = scale[u] * (x - base);
                if constexpr (kMinimum) t = fma(minimum[u], F32::set(a_sums[u * kTileHigh + r]), t);
            }
            y[r] = fma(t, F32::set(a_scales[r]), y[r]);
        }
    }
    template <int kSlot>
    PLAIT_INLINE_MEMBER void step() {
        multiply<kSlot + kAhead>(kAhead);
        keep<kSlot + 1>();
        add<kSlot>();
        a += kUnitBytes;
        b += kUnitBytes;
        a_scales += kTileHigh;
        a_sums += kSteps * kTileHigh;
        scales += kSteps * kLanes;
        lifts += kSteps * kLanes;
        minima += kSteps * kLanes;
    }
};

// Multiplies every tile of the strip's rows by the unpacked panel and adds the results to
// y [tiles][16][lanes].
template <int kSteps, bool kMinimum, bool kLifted>
void multiply_strip(const Strip& s, const Part& next, float* y) {
    TileScratch& from = s.scratch;
    Steps<kSteps, kMinimum, kLifted> steps;
    Ahead ahead(next.blocks, next.bytes, int64_t{s.tiles()} * s.units / steps.kRing);
    steps.a = from.a;
    steps.b = from.b;
    steps.a_scales = from.a_scales;
    steps.a_sums = from.a_sums;
    steps.sums = from.sums;
    steps.template multiply<0>(0);
    steps.template multiply<1>(1);
    if constexpr (kSteps == 1) steps.template multiply<2>(2);
    steps.template keep<0>();
    for (int tile = 0; tile < s.tiles(); ++tile, y += kSums) {
        steps.b = from.b;
        steps.scales = from.scales;
        steps.lifts = from.lifts;
        steps.minima = from.minima;
#pragma GCC unroll 16
        for (int r = 0; r < kTileHigh; ++r)
            steps.y[r] = s.first_unit == 0 ? F32::zero() : F32::load(y + r * kLanes);
        for (int unit = 0; unit < s.units; unit += steps.kRing) {
            ahead.fetch();
            steps.template step<0>();
            steps.template step<1>();
            if constexpr (kSteps == 1) {
                steps.template step<2>();
                steps.template step<3>();
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < kTileHigh; ++r) steps.y[r].store(y + r * kLanes);
    }
}

template <class Block>
void multiply_panel(const Strip& s, const uint8_t* blocks, const Part& next, float* y) {
    using D = BlockDot<Block>;
    constexpr int kSteps = 32 / D::kUnit;
    if (unpack<Block>(s, blocks))
        multiply_strip<kSteps, D::kMinimum, true>(s, next, y);
    else
        multiply_strip<kSteps, D::kMinimum, false>(s, next, y);
}

// A block type that is packed as scales and codes.
template <class Block>
struct Packed {
    using D = BlockDot<Block>;
    using Source = Block;
    static void multiply(const Strip& s, const Part& part, const Part& next, float* y) {
        multiply_panel<Block>(s, part.blocks, next, y);
    }
};

// A block type that is expanded first.
template <class Block>
struct Expanded {
    using D = BlockDot<BlockExpanded<Block>>;
    using Source = Block;
    static void multiply(const Strip& s, const Part& part, const Part& next, float* y) {
        unsigned char* to = s.scratch.expanded;
        expand_panel<Block, false>(part.blocks, int64_t{s.used} * 32, to);
        multiply_panel<BlockExpanded<Block>>(s, to, next, y);
    }
};

// Multiplies up to kPassRows rows by up to kPassPanels panels.
template <class Type>
void multiply_pass(const Product& product, int64_t row, int64_t rows, int64_t begin, int64_t end,
                   TileScratch& scratch) {
    using D = typename Type::D;
    constexpr int kSteps = 32 / D::kUnit, kRing = 4;
    const PackedWeight& w = *product.weight;
    const int64_t units = w.columns / 32;
    const auto used = [&](int64_t unit) {
        const int64_t left = units - unit;
        return static_cast<int>(left < TileScratch::kUnits ? left : TileScratch::kUnits);
    };
    const auto part = [&](int64_t p, int64_t unit) {
        constexpr int kInner = Type::Source::kElements / 32;
        constexpr int kBytes = static_cast<int>(sizeof(typename Type::Source)) * kLanes;
        return Part{product.matrix + p * w.panel_bytes + unit / kInner * kBytes,
                    int64_t{used(unit)} / kInner * kBytes};
    };
    for (int64_t unit = 0; unit < units; unit += TileScratch::kUnits) {
        const int full = (used(unit) + kRing - 1) / kRing * kRing;
        const Strip strip{product, scratch, row, rows, unit, used(unit), full};
        lay_rows<kSteps, D::kMinimum>(strip);
        const int64_t after = unit + TileScratch::kUnits;
        for (int64_t p = begin; p < end; ++p) {
            const Part next = p + 1 < end     ? part(p + 1, unit)
                              : after < units ? part(begin, after)
                                              : part(end, 0);  // usually of the next task
            Type::multiply(strip, part(p, unit), next,
                           scratch.y + (p - begin) * kPassRows * kLanes);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* y = product.y + product.row(row + r) * product.y_columns;
        for (int64_t p = begin; p < end; ++p)
            store(product, y, p, F32::load(scratch.y + ((p - begin) * kPassRows + r) * kLanes));
    }
}

template <class Type>
void multiply_format(const Product& product, int64_t begin, int64_t end, TileScratch& scratch) {
    constexpr int kStepBytes = Type::D::kUnit;
    static constexpr TileShapes kShapes = [] {
        TileShapes shapes;
        for (int tile = 0; tile < 8; ++tile) {
            const bool rows = tile == 4 || tile == 5, codes = tile > 5;
            shapes.rows[tile] = codes ? kStepBytes / 4 : kTileHigh;
            shapes.row_bytes[tile] = rows ? kStepBytes : 4 * kLanes;
        }
        return shapes;
    }();
    const OpenTiles tiles(kShapes);
    for (int64_t row = 0; row < product.n; row += kPassRows) {
        const int64_t rows = product.n - row < kPassRows ? product.n - row : kPassRows;
        for (int64_t p = begin; p < end; p += kPassPanels)
            multiply_pass<Type>(product, row, rows, p,
                                p + kPassPanels < end ? p + kPassPanels : end, scratch);
    }
}

// A task is up to kPassPanels panels by kPassRows rows: an unpacked panel serves every row of the
// task, and the rows that are laid out serve every panel. Unpacking a panel takes about as long as
// laying out a tile of rows. If there are too few tasks, they are made smaller with about as many
// panels as tiles.
ProductCut cut_tiles(int64_t panels, int64_t rows, int64_t matrices, int64_t threads) {
    ProductCut cut;
    cut.panels = clamp_to(panels, 1, kPassPanels);
    cut.rows = kPassRows;
    const int64_t wanted = wanted_tasks(threads);
    while (count_tasks(cut, panels, rows, matrices) < wanted) {
        const int64_t used = rows < cut.rows ? rows : cut.rows;
        const bool fewer_panels = cut.panels > kMinTaskPanels, fewer_rows = used > kMinTaskTileRows;
        if (!fewer_panels && !fewer_rows) break;
        if (fewer_panels && (!fewer_rows || cut.panels * kTileHigh > used))
            cut.panels /= 2;
        else
            cut.rows /= 2;
    }
    return cut;
}

void multiply_blocks(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    TileScratch& tiles = *reinterpret_cast<TileScratch*>(scratch);
    switch (product.weight->format) {
#define PLAIT_CASE(name, Block) \
    case DType::name: return multiply_format<Packed<Block>>(product, begin, end, tiles);
        PLAIT_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
#define PLAIT_CASE(name, Block) \
    case DType::name: return multiply_format<Expanded<Block>>(product, begin, end, tiles);
        PLAIT_IRREGULAR_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::i32: return;
    }
}

}  // namespace

extern const TileProduct kBlockProduct{kMinRows, sizeof(TileScratch), cut_tiles, multiply_blocks};

}  // namespace plait::cpu::amx
