// Sums of weighted values: for each query, over the keys that it sees, from the first to the last.
#include "backend/cpu/kernels/attention/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// Values at first + offset[entry], the values to prefetch meanwhile, and the entries [begin, end)
// that the queries see.
struct Values {
    const unsigned char* first;
    const int64_t* offset;
    RowPrefetch prefetch;
    int32_t begin, end;
};

// Computes partial = partial * factor + sum of p v, for `width` registers of columns.
template <typename Load, int count, int width>
PLAIT_INLINE void add_columns(const Tile& tile, int64_t query, int64_t column,
                              const Values& values) {
    F32 acc[count][width];
    const float* p = tile.scores + query * kKeyBlock;
    float* partial = tile.partial + query * tile.width + column;
    for (int i = 0; i < count; ++i) {
        const F32 factor = F32::set(tile.query[query + i].factor);
        for (int c = 0; c < width; ++c)
            acc[i][c] = F32::load(partial + i * tile.width + c * F32::kLanes) * factor;
    }
    for (int32_t e = values.begin; e < values.end; ++e) {
        const unsigned char* row = values.first + values.offset[e];
        if (column == 0) values.prefetch.fetch(e);
        F32 v[width];
        for (int c = 0; c < width; ++c) v[c] = Load::at(row, column + c * F32::kLanes);
        for (int i = 0; i < count; ++i) {
            const F32 weight = F32::set(p[i * kKeyBlock + e]);
            for (int c = 0; c < width; ++c) acc[i][c] = fma(weight, v[c], acc[i][c]);
        }
    }
    for (int i = 0; i < count; ++i)
        for (int c = 0; c < width; ++c) acc[i][c].store(partial + i * tile.width + c * F32::kLanes);
}

template <typename Load, int count, int width>
PLAIT_INLINE int64_t add_wide(const Tile& tile, int64_t query, int64_t column,
                              const Values& values) {
    for (; column + width * F32::kLanes <= tile.width; column += width * F32::kLanes)
        add_columns<Load, count, width>(tile, query, column, values);
    return column;
}

template <typename Load, int count>
static inline void add_values(const Tile& tile, int64_t query, const Values& values) {
    constexpr int kWide = kRegisters / 2 / (count < 3 ? 2 : 4);  // half of the registers hold sums
    int64_t column = add_wide<Load, count, kWide>(tile, query, 0, values);
    column = add_wide<Load, count, kWide / 2>(tile, query, column, values);
    add_wide<Load, count, 1>(tile, query, column, values);
}

// Up to four successive queries that see the same keys are computed together.
template <typename Load>
static inline void add_values(const Tile& tile, const KeyBlock& block, Values& values,
                              int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
        const uint32_t visible = tile.query[i].visible;
        int64_t count = 1;
        while (count < 4 && i + count < end && tile.query[i + count].visible == visible) ++count;
        values.begin = 0;
        while (values.begin < block.count && (visible >> block.lane[values.begin] & 1) == 0)
            ++values.begin;
        values.end = visible == block.lanes ? block.count : values.begin;
        while (values.end < block.count && (visible >> block.lane[values.end] & 1) != 0)
            ++values.end;
        if (values.begin < values.end) {
            switch (count) {
            case 1: add_values<Load, 1>(tile, i, values); break;
            case 2: add_values<Load, 2>(tile, i, values); break;
            case 3: add_values<Load, 3>(tile, i, values); break;
            default: add_values<Load, 4>(tile, i, values); break;
            }
            values.prefetch.bytes = 0;  // the first queries have prefetched everything
        }
        i += count;
    }
}

}  // namespace

void add_values(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const CacheLayout& cache = tile.args.value_cache;
    Values values{tile.values, tile.now->value, prefetch_values(tile), 0, 0};
    const bool whole = tile.width <= cache.head_elements;  // no register reads past a head's end
    const bool few = end - begin < kManyQueries;
    if (whole && cache.dtype == DType::f32)
        return add_values<LoadF32>(tile, block, values, begin, end);
    if (whole && cache.dtype == DType::f16 && few)
        return add_values<LoadF16>(tile, block, values, begin, end);
    if (whole && cache.dtype == DType::bf16 && few)
        return add_values<LoadBF16>(tile, block, values, begin, end);
    if (whole && cache.dtype == DType::q8_0 && few)
        return add_values<LoadQ8_0>(tile, block, values, begin, end);

    const bool decoded = tile.args.values_in_keys && decodes_keys(tile, end - begin);
    const int64_t stride =
        decoded || tile.width < cache.head_elements ? cache.head_elements : tile.width;
    int64_t offset[kKeyBlock];
    for (int32_t e = 0; e < block.count; ++e) {
        offset[e] = e * stride * static_cast<int64_t>(sizeof(float));
        if (decoded) continue;
        values.prefetch.fetch(e);
        decode_cache(cache.dtype, tile.values + tile.now->value[e], tile.rows + e * stride,
                     cache.head_elements);
    }
    values = {
        reinterpret_cast<const unsigned char*>(tile.rows), offset, {nullptr, nullptr, 0}, 0, 0};
    add_values<LoadF32>(tile, block, values, begin, end);
}

}  // namespace plait::cpu::PLAIT_ISA
