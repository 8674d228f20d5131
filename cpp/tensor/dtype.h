// Element types: names, block sizes and GGUF ids. tensor/blocks defines the layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/dtype_enum.h"

namespace plait {

struct DTypeInfo {
    DType dtype;
    std::string_view name;    // as in GGUF tools: "F32", "Q4_K"
    uint32_t gguf_id;         // ggml_type number in a GGUF file
    uint32_t block_elements;  // elements per block; 1 for types without blocks
    uint32_t block_bytes;
};

const DTypeInfo& info(DType dtype);
std::span<const DTypeInfo> all_dtypes();
std::optional<DType> dtype_from_gguf(uint32_t id);
std::optional<DType> dtype_from_name(std::string_view name);  // ignores case

// Returns the size of `elements` values in bytes. `elements` must be a multiple of the block size.
uint64_t row_bytes(DType dtype, uint64_t elements);

}  // namespace plait
