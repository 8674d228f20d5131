#include "tensor/convert.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "tensor/blocks/expanded.h"
#include "tensor/blocks/float4.h"
#include "tensor/blocks/iq4.h"
#include "tensor/blocks/k_quants.h"
#include "tensor/blocks/legacy.h"
#include "tensor/half.h"
#include "tensor/search.h"

namespace plait {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are read as stored");

void check_whole_blocks(const char* function, DType dtype, uint64_t elements) {
    const DTypeInfo& type = info(dtype);
    if (elements % type.block_elements == 0) return;
    throw InvalidArgument(text(function, ": ", type.name, " holds blocks of ", type.block_elements,
                               " values, got ", elements));
}

// Calls f(block, index of its first value) for every block. `source` may be unaligned.
template <typename Block, typename F>
void each_block(const std::byte* source, uint64_t elements, F f) {
    for (uint64_t first = 0; first < elements; first += Block::kElements) {
        Block block;
        std::memcpy(&block, source, sizeof(block));
        f(block, first);
        source += sizeof(block);
    }
}

template <typename Block>
void decode_all(const std::byte* source, float* target, uint64_t elements) {
    each_block<Block>(source, elements,
                      [&](const Block& block, uint64_t first) { decode(block, target + first); });
}

template <typename Block>
void expand_all(const std::byte* source, uint8_t* codes, float* scales, uint64_t elements) {
    each_block<Block>(source, elements, [&](const Block& block, uint64_t first) {
        expand(block, codes + first, scales + first / 16);
    });
}

template <typename Block>
void encode_all(const float* source, std::byte* target, uint64_t elements) {
    for (uint64_t done = 0; done < elements; done += Block::kElements) {
        Block block;
        encode(source + done, block);
        std::memcpy(target, &block, sizeof(block));
        target += sizeof(block);
    }
}

template <float (*kWiden)(uint16_t)>
void widen_all(const std::byte* source, float* target, uint64_t elements) {
    for (uint64_t i = 0; i < elements; ++i) {
        uint16_t half;
        std::memcpy(&half, source + i * sizeof(half), sizeof(half));
        target[i] = kWiden(half);
    }
}

template <uint16_t (*kNarrow)(float)>
void narrow_all(const float* source, std::byte* target, uint64_t elements) {
    for (uint64_t i = 0; i < elements; ++i) {
        const uint16_t half = kNarrow(source[i]);
        std::memcpy(target + i * sizeof(half), &half, sizeof(half));
    }
}

void copy_to_floats(const std::byte* source, float* target, uint64_t elements) {
    if (elements > 0) std::memcpy(target, source, elements * sizeof(float));
}

void copy_from_floats(const float* source, std::byte* target, uint64_t elements) {
    if (elements > 0) std::memcpy(target, source, elements * sizeof(float));
}

using Decoder = void (*)(const std::byte*, float*, uint64_t);
using Encoder = void (*)(const float*, std::byte*, uint64_t);

Decoder decoder_of(DType dtype) {
    switch (dtype) {
    case DType::f32: return copy_to_floats;
    case DType::f16: return widen_all<f16_to_f32>;
    case DType::bf16: return widen_all<bf16_to_f32>;
    case DType::q8_0: return decode_all<BlockQ8_0>;
    case DType::q4_0: return decode_all<BlockQ4_0>;
    case DType::q4_1: return decode_all<BlockQ4_1>;
    case DType::q5_0: return decode_all<BlockQ5_0>;
    case DType::q5_1: return decode_all<BlockQ5_1>;
    case DType::q2_k: return decode_all<BlockQ2_K>;
    case DType::q3_k: return decode_all<BlockQ3_K>;
    case DType::q4_k: return decode_all<BlockQ4_K>;
    case DType::q5_k: return decode_all<BlockQ5_K>;
    case DType::q6_k: return decode_all<BlockQ6_K>;
    case DType::iq4_nl: return decode_all<BlockIQ4_NL>;
    case DType::iq4_xs: return decode_all<BlockIQ4_XS>;
    case DType::mxfp4: return decode_all<BlockMXFP4>;
#define PLAIT_CASE(name, Block) \
    case DType::name: return decode_all<Block>;
        PLAIT_EXPANDED_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::i32: break;
    }
    return nullptr;
}

Encoder encoder_of(DType dtype) {
    switch (dtype) {
    case DType::f32: return copy_from_floats;
    case DType::f16: return narrow_all<f32_to_f16>;
    case DType::bf16: return narrow_all<f32_to_bf16>;
    case DType::q8_0: return encode_all<BlockQ8_0>;
    case DType::q4_0: return encode_all<BlockQ4_0>;
    case DType::q4_1: return encode_all<BlockQ4_1>;
    case DType::q5_0: return encode_all<BlockQ5_0>;
    case DType::q5_1: return encode_all<BlockQ5_1>;
    case DType::iq4_nl: return encode_all<BlockIQ4_NL>;
    default: return nullptr;
    }
}

}  // namespace

void dequantize(DType dtype, const std::byte* source, float* target, uint64_t elements) {
    const Decoder decoder = decoder_of(dtype);
    if (!decoder) {
        throw UnsupportedError(text("dequantize: ", info(dtype).name, " is not a float type"));
    }
    check_whole_blocks("dequantize", dtype, elements);
    decoder(source, target, elements);
}

void expand(DType dtype, const std::byte* source, uint8_t* codes, float* scales,
            uint64_t elements) {
    PLAIT_CHECK(is_expanded(dtype));
    check_whole_blocks("expand", dtype, elements);
    switch (dtype) {
#define PLAIT_CASE(name, Block) \
    case DType::name: return expand_all<Block>(source, codes, scales, elements);
        PLAIT_EXPANDED_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    default: return;
    }
}

void quantize(DType dtype, const float* source, std::byte* target, uint64_t elements) {
    check_whole_blocks("quantize", dtype, elements);
    if (const Encoder encoder = encoder_of(dtype)) return encoder(source, target, elements);
    const uint64_t block = info(dtype).block_elements;
    quantize_search(dtype, source, nullptr, block, elements / block, target);
}

bool can_quantize(DType dtype) { return encoder_of(dtype) != nullptr || can_search(dtype); }

}  // namespace plait
