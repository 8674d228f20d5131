// Matrices between a file's order and the panels that kernels stream; see kernels/packed.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/products/packed.h"
#include "tensor/tensor.h"

namespace plait::cpu {

// Where everything goes for a [out, in] or [experts, out, in] weight; `data` is left null.
// UnsupportedError where the type cannot be multiplied.
PackedWeight packed_layout(const TensorType& type, Isa isa);
uint64_t packed_bytes(const PackedWeight& layout);

// Writes one panel from its rows as the file has them, `rows` of at most layout.lanes.
void pack_panel(const PackedWeight& layout, std::span<const std::byte> rows, std::byte* panel);

// Reads one row back: the very bytes of the file.
void unpack_row(const PackedWeight& weight, int64_t matrix, int64_t row,
                std::span<std::byte> target);

}  // namespace plait::cpu
