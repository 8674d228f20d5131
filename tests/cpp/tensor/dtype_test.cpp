#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "tensor/tensor.h"

namespace plait {
namespace {

TEST(DType, IsFoundByNameInAnyCaseAndByItsGgufId) {
    std::set<uint32_t> ids;
    for (const DTypeInfo& type : all_dtypes()) {
        EXPECT_EQ(info(type.dtype).name, type.name);
        EXPECT_EQ(dtype_from_name(type.name), type.dtype);
        std::string lower(type.name);
        for (char& c : lower) c = static_cast<char>(std::tolower(c));
        EXPECT_EQ(dtype_from_name(lower), type.dtype);
        EXPECT_EQ(dtype_from_gguf(type.gguf_id), type.dtype);
        EXPECT_TRUE(ids.insert(type.gguf_id).second) << type.name;
    }
}

TEST(DType, UnknownNamesAndIdsAreNotFound) {
    for (const char* name : {"", "Q4", "Q4_0 ", "Q4_2", "FLOAT32", "Q4_K_M"}) {
        EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
    }
    // 4 and 5 were withdrawn, 36 to 38 too; 31 to 33 were repacked layouts.
    for (const uint32_t id : {4u, 5u, 31u, 36u, 99u, 0x80000000u, 0xFFFFFFFFu}) {
        EXPECT_EQ(dtype_from_gguf(id), std::nullopt) << id;
    }
}

TEST(DType, RowsAreWholeBlocks) {
    EXPECT_EQ(row_bytes(DType::f32, 7), 28u);
    EXPECT_EQ(row_bytes(DType::q4_0, 64), 36u);
    EXPECT_EQ(row_bytes(DType::q6_k, 256), 210u);
    EXPECT_EQ(row_bytes(DType::mxfp4, uint64_t{1} << 40), (uint64_t{1} << 35) * 17);
    EXPECT_THROW(row_bytes(DType::q4_0, 33), InternalError);
    EXPECT_FALSE(is_block_type(DType::bf16));
    EXPECT_TRUE(is_block_type(DType::q8_0));
}

TEST(Shape, CountsAxesFromBothEnds) {
    const Shape shape{2, 3, 4};
    EXPECT_EQ(shape[0], 2);
    EXPECT_EQ(shape[-1], 4);
    EXPECT_EQ(shape.elements(), 24);
    EXPECT_EQ(to_string(shape), "[2, 3, 4]");
    EXPECT_THROW(shape[3], InternalError);
    EXPECT_THROW(shape[-4], InternalError);
}

TEST(Shape, OfRankZeroIsOneElement) {
    EXPECT_EQ(Shape{}.elements(), 1);
    EXPECT_EQ(to_string(Shape{}), "[]");
    EXPECT_EQ((TensorType{DType::f32, {}}.bytes()), 4u);
}

TEST(TensorType, BytesAreRowsTimesRowBytes) {
    EXPECT_EQ((TensorType{DType::f16, {3, 5}}.bytes()), 30u);
    EXPECT_EQ((TensorType{DType::q4_k, {7, 512}}.bytes()), 7u * 2 * 144);
    EXPECT_EQ((TensorType{DType::q8_0, {0, 32}}.bytes()), 0u);
    EXPECT_EQ(to_string(TensorType{DType::q4_k, {7, 512}}), "Q4_K [7, 512]");
}

}  // namespace
}  // namespace plait
