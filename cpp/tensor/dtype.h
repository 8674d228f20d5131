// Element types: names, block sizes, GGUF ids. Layouts are in tensor/blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/dtype_enum.h"

namespace plait {

struct DTypeInfo {
    DType dtype;
    std::string_view name;    // as GGUF tools write it: "F32", "Q4_K"
    uint32_t gguf_id;         // ggml_type number in a GGUF file
    uint32_t block_elements;  // elements a block holds; 1 for plain types
    uint32_t block_bytes;
};

const DTypeInfo& info(DType dtype);
std::span<const DTypeInfo> all_dtypes();
std::optional<DType> dtype_from_gguf(uint32_t id);
std::optional<DType> dtype_from_name(std::string_view name);  // any case

inline bool is_block_type(DType dtype) { return info(dtype).block_elements > 1; }

// Bytes of `elements` values; `elements` must be a multiple of the block.
uint64_t row_bytes(DType dtype, uint64_t elements);

}  // namespace plait
