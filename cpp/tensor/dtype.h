// Element types: names, block sizes, GGUF ids. Layouts are in tensor/blocks.
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
    // Types of tensor/blocks/expanded.h from here on.
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
inline bool is_expanded(DType dtype) { return dtype >= DType::iq2_xxs; }

// Bytes of `elements` values; `elements` must be a multiple of the block.
uint64_t row_bytes(DType dtype, uint64_t elements);

}  // namespace plait
