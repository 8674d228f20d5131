#include <thread>

#include "backend/cpu/products/products.h"
#include "backend/cpu/weights/pack.h"

namespace plait::cpu::products {
namespace {

class Weights : public testing::TestWithParam<Case> {};

std::vector<std::byte> read_back(const PackedWeight& w, DType dtype) {
    const uint64_t bytes = row_bytes(dtype, static_cast<uint64_t>(w.columns));
    std::vector<std::byte> all(bytes * static_cast<uint64_t>(w.rows * w.matrices));
    for (int64_t i = 0; i < w.rows * w.matrices; ++i)
        unpack_row(w, i / w.rows, i % w.rows,
                   std::span(all).subspan(static_cast<uint64_t>(i) * bytes, bytes));
    return all;
}

// Packing keeps every bit and the number of bytes. # S3-11
TEST_P(Weights, EveryByteCanBeReadBack) {
    const auto [isa, dtype] = GetParam();
    for (const Shape& shape : {Shape{1, 256}, Shape{37, 512}, Shape{16, 1024}, Shape{3, 21, 256}}) {
        One one(isa, {dtype, shape});
        EXPECT_EQ(read_back(one.packed(), dtype), one.source->bytes(0)) << to_string(shape);
        EXPECT_EQ(one.packed().data, one.packed().data);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(one.packed().data) % 64, 0u);
    }
    One one(isa, {dtype, {64, 2048}});
    one.packed();
    EXPECT_LE(static_cast<double>(one.store->bytes()),
              1.01 * static_cast<double>(one.source->bytes(0).size()));
}

INSTANTIATE_TEST_SUITE_P(All, Weights, testing::ValuesIn(cases()), case_name);

// While a model is loaded, it needs little more memory than its packed copy.
TEST(WeightStore, ReadsLargeTensorsInSlices) {
    const Isa isa = available_isas().back();
    for (const DType dtype : {DType::f32, DType::q6_k}) {
        for (const int threads : {1, 3}) {
            One one(isa, {dtype, {2, 1501, 2048}});
            const std::vector<std::byte>& file = one.source->bytes(0);
            EXPECT_EQ(read_back(one.store->matrix(0, threads), dtype), file);
            EXPECT_LE(one.source->largest_read, 2u << 20);
            EXPECT_GT(file.size(), 4u << 20);
        }
    }
}

TEST(WeightStore, PacksOnceForAllThreads) {
    One one(available_isas().back(), {DType::q4_0, {512, 512}});
    const PackedWeight* seen[4] = {};
    {
        std::vector<std::jthread> threads;
        for (auto& at : seen) threads.emplace_back([&] { at = &one.store->matrix(0, 2); });
    }
    for (const PackedWeight* at : seen) EXPECT_EQ(at, &one.packed());
    EXPECT_EQ(one.store->bytes(), one.source->bytes(0).size());
}

TEST(WeightStore, VectorsBecomeFloats) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        One one(available_isas().back(), {dtype, {77}});
        EXPECT_EQ(std::vector<float>(one.store->vector(0), one.store->vector(0) + 77),
                  one.values());
        EXPECT_EQ(one.store->bytes(), 77 * sizeof(float));
    }
}

TEST(WeightStore, AFailedReadThrowsAndCanBeRetried) {
    One one(available_isas().back(), {DType::f32, {4096, 1024}});
    one.source->fail_at = 5 << 20;
    EXPECT_THROW(one.store->matrix(0, 2), ModelError);
    EXPECT_EQ(one.store->bytes(), 0u);
    one.source->fail_at = UINT64_MAX;
    EXPECT_EQ(read_back(one.store->matrix(0, 2), DType::f32), one.source->bytes(0));
}

// Reports a matrix that is too large for any machine.
class Huge final : public WeightSource {
public:
    size_t count() const override { return 1; }
    const std::string& name(WeightId) const override { return name_; }
    const TensorType& type(WeightId) const override { return type_; }
    void read(WeightId, uint64_t, std::span<std::byte>) const override { FAIL(); }

private:
    std::string name_ = "huge";
    TensorType type_{DType::f16, {int64_t{1} << 40, 4096}};
};

TEST(WeightStore, NamesTheBytesThatItCannotAllocate) {
    CpuWeights store(std::make_shared<Huge>(), available_isas().back());
    try {
        store.matrix(0, 1);
        FAIL();
    } catch (const BackendError& error) {
        EXPECT_NE(std::string(error.what()).find(std::to_string(uint64_t{1} << 53)),
                  std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace plait::cpu::products
