// Packing of weight matrices from a file's order into panels, and back; see
// kernels/products/packed.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/products/packed.h"
#include "tensor/tensor.h"

namespace plait::cpu {

// The packed layout of an [out, in] or [experts, out, in] weight; `data` is null. Throws
// UnsupportedError if the type cannot be multiplied.
PackedWeight packed_layout(const TensorType& type, Isa isa);
uint64_t packed_bytes(const PackedWeight& layout);

// Writes one panel. `rows` has the panel's rows as in the file, at most layout.lanes of them.
void pack_panel(const PackedWeight& layout, std::span<const std::byte> rows, std::byte* panel);

// Reads one row back, with the same bytes as in the file.
void unpack_row(const PackedWeight& weight, int64_t matrix, int64_t row,
                std::span<std::byte> target);

}  // namespace plait::cpu
