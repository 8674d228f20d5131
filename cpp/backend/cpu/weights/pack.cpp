#include "backend/cpu/weights/pack.h"

#include <cstring>

#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/products/codes.h"
#include "backend/cpu/kernels/products/product_cost.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "tensor/blocks/expanded.h"

namespace plait::cpu {
namespace {

uint64_t file_row_bytes(const PackedWeight& w) {
    return row_bytes(w.format, static_cast<uint64_t>(w.columns));
}

// The rows of a panel are packed side by side, so that what is written stays in the first level
// cache, which makes some types up to four times as fast (docs/decisions/0046).
template <class Block>
void pack_blocks(const PackedWeight& w, std::span<const std::byte> rows, int64_t n,
                 unsigned char* panel) {
    const size_t row_bytes = rows.size() / static_cast<size_t>(n);
    for (int64_t b = 0; b < w.columns / Block::kElements; ++b) {
        for (int64_t lane = 0; lane < n; ++lane) {
            Block block;
            std::memcpy(&block,
                        rows.data() + static_cast<size_t>(lane) * row_bytes +
                            static_cast<size_t>(b) * sizeof block,
                        sizeof block);
            pack_block(block, w, panel, lane, b);
        }
    }
}

template <class Block>
void unpack_blocks(const PackedWeight& w, const unsigned char* panel, int64_t lane,
                   std::byte* row) {
    for (int64_t b = 0; b < w.columns / Block::kElements; ++b) {
        Block block;
        unpack_block(w, panel, lane, b, block);
        std::memcpy(row + static_cast<size_t>(b) * sizeof block, &block, sizeof block);
    }
}

// Copies n elements of kBytes each, with the given distances between them, in elements.
template <size_t kBytes>
void copy_strided(std::byte* to, size_t to_step, const std::byte* from, size_t from_step,
                  size_t n) {
    for (size_t i = 0; i < n; ++i)
        std::memcpy(to + i * to_step * kBytes, from + i * from_step * kBytes, kBytes);
}

// Writes elements of kBytes each of n rows, one column of all lanes after the other.
template <size_t kBytes>
void interleave(std::span<const std::byte> rows, size_t n, size_t lanes, std::byte* panel) {
    const size_t row_bytes = rows.size() / n;
    for (size_t at = 0; at < row_bytes; at += kBytes, panel += lanes * kBytes)
        for (size_t lane = 0; lane < n; ++lane)
            std::memcpy(panel + lane * kBytes, rows.data() + lane * row_bytes + at, kBytes);
}

void pack_bf16_matrices(const PackedWeight& w, std::span<const std::byte> rows, int64_t n,
                        std::byte* panel) {
    const std::byte* element = rows.data();
    for (int64_t lane = 0; lane < n; ++lane)
        for (int64_t k = 0; k < w.columns; ++k, element += 2)
            std::memcpy(panel + 2 * w.element(k, lane), element, 2);
}

}  // namespace

PackedWeight packed_layout(const TensorType& type, Isa isa) {
    // In files, a single matrix may have leading dimensions of 1, and a single row may have none.
    int first = 0;
    while (type.shape.rank - first > 2 && type.shape[first] == 1) ++first;
    const int rank = type.shape.rank - first;
    PLAIT_CHECK(rank >= 1 && rank <= 3);
    if (type.dtype == DType::i32)
        throw UnsupportedError("cpu: a weight matrix of type I32 cannot be multiplied");
    PackedWeight w{};
    w.format = type.dtype;
    w.isa = isa;
    const auto tiles = kernels(isa).tiles;
    w.tiles = tiles ? tiles(w.format) : nullptr;
    w.lanes = isa->panel_lanes;
    w.rows = rank == 1 ? 1 : type.shape[-2];
    w.columns = type.shape[-1];
    w.matrices = rank == 3 ? type.shape[first] : 1;
    const int64_t columns = w.uses_bf16_matrices() ? (w.columns + 3) / 4 * 4 : w.columns;
    const auto lanes = static_cast<uint64_t>(w.lanes);
    const uint64_t panel = row_bytes(w.format, static_cast<uint64_t>(columns)) * lanes;
    w.panel_bytes = static_cast<int64_t>(align_up(panel, 4 * lanes));
    w.matrix_bytes = w.panel_bytes * w.panels();
    w.are_streams_read_ahead = reads_streams_ahead();
    return w;
}

uint64_t packed_bytes(const PackedWeight& layout) {
    const auto bytes = checked_mul(static_cast<uint64_t>(layout.matrix_bytes),
                                   static_cast<uint64_t>(layout.matrices));
    if (!bytes) throw BackendError("cpu: the size of a weight exceeds 64 bits");
    return *bytes;
}

void pack_panel(const PackedWeight& w, std::span<const std::byte> rows, std::byte* panel) {
    const uint64_t bytes = file_row_bytes(w);
    const auto n = static_cast<int64_t>(rows.size() / bytes);
    PLAIT_CHECK(n <= w.lanes && rows.size() == static_cast<uint64_t>(n) * bytes);
    if (n == 0) return;
    const auto lanes = static_cast<size_t>(w.lanes), count = static_cast<size_t>(n);
    switch (w.format) {
#define PLAIT_CASE(name, Block) \
    case DType::name:           \
        return pack_blocks<Block>(w, rows, n, reinterpret_cast<unsigned char*>(panel));
        PLAIT_BLOCKS(PLAIT_CASE)
        PLAIT_IRREGULAR_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16:
    case DType::bf16:
        if (w.uses_bf16_matrices()) return pack_bf16_matrices(w, rows, n, panel);
        return interleave<2>(rows, count, lanes, panel);
    default: return interleave<4>(rows, count, lanes, panel);
    }
}

void unpack_row(const PackedWeight& w, int64_t matrix, int64_t row, std::span<std::byte> target) {
    PLAIT_CHECK(target.size() == file_row_bytes(w));
    const unsigned char* panel = w.data + matrix * w.matrix_bytes + row / w.lanes * w.panel_bytes;
    const auto* bytes = reinterpret_cast<const std::byte*>(panel);
    const int64_t lane = row % w.lanes;
    const auto lanes = static_cast<size_t>(w.lanes), columns = static_cast<size_t>(w.columns);
    switch (w.format) {
#define PLAIT_CASE(name, Block) \
    case DType::name: unpack_blocks<Block>(w, panel, lane, target.data()); break;
        PLAIT_BLOCKS(PLAIT_CASE)
        PLAIT_IRREGULAR_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16:
    case DType::bf16:
        if (w.uses_bf16_matrices()) {
            for (int64_t k = 0; k < w.columns; ++k)
                std::memcpy(target.data() + 2 * k, bytes + 2 * w.element(k, lane), 2);
        } else {
            copy_strided<2>(target.data(), 1, bytes + 2 * lane, lanes, columns);
        }
        break;
    default: copy_strided<4>(target.data(), 1, bytes + 4 * lane, lanes, columns);
    }
}

}  // namespace plait::cpu
