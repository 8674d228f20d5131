#include "tensor/dtype.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// Ids and sizes: enum ggml_type and type_traits in ggml.h and ggml.c,
// https://github.com/ggml-org/ggml/blob/master/include/ggml.h
constexpr std::array kTable = {
    DTypeInfo{DType::f32, "F32", 0, 1, 4},
    DTypeInfo{DType::f16, "F16", 1, 1, 2},
    DTypeInfo{DType::bf16, "BF16", 30, 1, 2},
    DTypeInfo{DType::i32, "I32", 26, 1, 4},
    DTypeInfo{DType::q8_0, "Q8_0", 8, 32, 34},
    DTypeInfo{DType::q4_0, "Q4_0", 2, 32, 18},
    DTypeInfo{DType::q4_1, "Q4_1", 3, 32, 20},
    DTypeInfo{DType::q5_0, "Q5_0", 6, 32, 22},
    DTypeInfo{DType::q5_1, "Q5_1", 7, 32, 24},
    DTypeInfo{DType::q2_k, "Q2_K", 10, 256, 84},
    DTypeInfo{DType::q3_k, "Q3_K", 11, 256, 110},
    DTypeInfo{DType::q4_k, "Q4_K", 12, 256, 144},
    DTypeInfo{DType::q5_k, "Q5_K", 13, 256, 176},
    DTypeInfo{DType::q6_k, "Q6_K", 14, 256, 210},
    DTypeInfo{DType::iq4_nl, "IQ4_NL", 20, 32, 18},
    DTypeInfo{DType::iq4_xs, "IQ4_XS", 23, 256, 136},
    DTypeInfo{DType::mxfp4, "MXFP4", 39, 32, 17},
    DTypeInfo{DType::iq2_xxs, "IQ2_XXS", 16, 256, 66},
    DTypeInfo{DType::iq2_xs, "IQ2_XS", 17, 256, 74},
    DTypeInfo{DType::iq2_s, "IQ2_S", 22, 256, 82},
    DTypeInfo{DType::iq3_xxs, "IQ3_XXS", 18, 256, 98},
    DTypeInfo{DType::iq3_s, "IQ3_S", 21, 256, 110},
    DTypeInfo{DType::iq1_s, "IQ1_S", 19, 256, 50},
    DTypeInfo{DType::iq1_m, "IQ1_M", 29, 256, 56},
    DTypeInfo{DType::tq1_0, "TQ1_0", 34, 256, 54},
    DTypeInfo{DType::tq2_0, "TQ2_0", 35, 256, 66},
    DTypeInfo{DType::nvfp4, "NVFP4", 40, 64, 36},
    DTypeInfo{DType::q1_0, "Q1_0", 41, 128, 18},
    DTypeInfo{DType::q2_0, "Q2_0", 42, 64, 18},
};

static_assert(std::ranges::all_of(kTable, [](const DTypeInfo& type) {
    return is_block_type(type.dtype) == (type.block_elements > 1);
}));

constexpr bool in_order() {
    for (size_t i = 0; i < kTable.size(); ++i) {
        if (kTable[i].dtype != static_cast<DType>(i)) return false;
    }
    return kTable.back().dtype == DType::q2_0;
}
static_assert(in_order(), "info() uses the DType as an index into the table");

constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool same_name(std::string_view a, std::string_view b) {
    return std::ranges::equal(a, b, {}, upper, upper);
}

}  // namespace

const DTypeInfo& info(DType dtype) {
    const auto index = static_cast<size_t>(dtype);
    PLAIT_CHECK(index < kTable.size());
    return kTable[index];
}

std::span<const DTypeInfo> all_dtypes() { return kTable; }

std::optional<DType> dtype_from_gguf(uint32_t id) {
    const auto found = std::ranges::find(kTable, id, &DTypeInfo::gguf_id);
    return found == kTable.end() ? std::nullopt : std::optional(found->dtype);
}

std::optional<DType> dtype_from_name(std::string_view name) {
    const auto found = std::ranges::find_if(
        kTable, [&](const DTypeInfo& type) { return same_name(type.name, name); });
    return found == kTable.end() ? std::nullopt : std::optional(found->dtype);
}

uint64_t row_bytes(DType dtype, uint64_t elements) {
    const DTypeInfo& type = info(dtype);
    PLAIT_CHECK(elements % type.block_elements == 0);
    return elements / type.block_elements * type.block_bytes;
}

}  // namespace plait
