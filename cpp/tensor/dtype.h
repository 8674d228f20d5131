// Element types: names, block sizes and GGUF ids. tensor/blocks defines the layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace plait {

enum class DType : uint8_t {
    f32,
    f16,
    bf16,
    i32,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    // The remaining types are those of tensor/blocks/expanded.h.
    iq2_xxs,
    iq2_xs,
    iq2_s,
    iq3_xxs,
    iq3_s,
    iq1_s,
    iq1_m,
    tq1_0,
    tq2_0,
    nvfp4,
    q1_0,
    q2_0,
};

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

inline bool is_block_type(DType dtype) { return info(dtype).block_elements > 1; }
inline bool is_expanded(DType dtype) { return dtype >= DType::iq2_xxs; }

// Returns the size of `elements` values in bytes. `elements` must be a multiple of the block size.
uint64_t row_bytes(DType dtype, uint64_t elements);

}  // namespace plait
