#include <cmath>
#include <cstring>

#include "backend/cpu/products/products.h"
#include "support/odd_values.h"

namespace plait::cpu::products {
namespace {

// Every block type, packed for AVX-512 and for AMX.
class TileProduct : public testing::TestWithParam<DType> {
protected:
    void SetUp() override {
        if (!available_isas().back()->has_tiles) GTEST_SKIP() << "a machine without AMX";
    }
    int64_t block() const { return info(GetParam()).block_elements; }
};

// Compares bits, except that any two NaN are equal: their payloads depend on the processor.
testing::AssertionResult same(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << ", " << b.size();
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(a[i]) && std::isnan(b[i])) continue;
        if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
            return testing::AssertionFailure() << "output " << i << ": " << a[i] << ", " << b[i];
    }
    return testing::AssertionSuccess();
}

struct Pair {
    explicit Pair(const TensorType& type)
        : vectors(isa_from_name("avx512"), type), tiles(isa_from_name("amx"), type) {}
    One vectors, tiles;
};

std::vector<float> product(Isa isa, const PackedWeight& weight, const Input& x, int64_t n,
                           int64_t grain = 1 << 20) {
    const auto outputs = static_cast<size_t>(n * weight.rows);
    const std::vector<float> bias = random_values(static_cast<size_t>(weight.rows), 3);
    const std::vector<float> residual = random_values(outputs, 4);
    std::vector<float> y(outputs, 12345.0f);
    LinearArgs args{};
    args.x = x.ref();
    args.y = fixed(y.data());
    args.bias = fixed(bias.data());
    args.residual = fixed(residual.data());
    args.has_bias = args.has_residual = 1;
    args.fixed_rows = n;
    args.weight = weight;
    run(kernels(isa).linear, args, grain, static_cast<uint64_t>(product_scratch_bytes(weight)));
    return y;
}

Input input(DType dtype, int64_t n, int64_t columns, uint32_t seed = 7) {
    return {isa_from_name("avx512"), dtype, random_values(static_cast<size_t>(n * columns), seed),
            columns};
}

// A prompt that is computed in tiles and a step that is not have the same bits. # S2-34
TEST_P(TileProduct, HasTheBitsOfVectors) {
    for (const int64_t columns : {block(), 3 * block(), int64_t{1280}, int64_t{4096}}) {
        if (columns % block() != 0) continue;
        for (const int64_t rows : {5, 16, 81}) {
            Pair pair({GetParam(), {rows, columns}});
            std::vector<int64_t> counts = {1, 17, 31, 32, 33, 40, 64, 100, 260, 300};
            if (columns == 3 * block() && rows == 81)
                for (int64_t n = 2; n < 40; ++n) counts.push_back(n);
            for (const int64_t n : counts) {
                const Input x = input(GetParam(), n, columns);
                const std::vector<float> expected =
                    product(isa_from_name("avx512"), pair.vectors.packed(), x, n);
                for (const int64_t grain : {1 << 20, -1})
                    ASSERT_TRUE(same(
                        product(isa_from_name("amx"), pair.tiles.packed(), x, n, grain), expected))
                        << columns << " columns, " << rows << " rows, " << n;
            }
        }
    }
}

// Values that are not finite, in a row or in a scale, and scales whose lifts are not exact.
TEST_P(TileProduct, HasTheBitsOfVectorsForNonFiniteValues) {
    const int64_t columns = 2 * block(), rows = 20, n = 37;
    Pair pair({GetParam(), {rows, columns}});
    std::vector<float> values = random_values(static_cast<size_t>(n * columns), 9);
    values[static_cast<size_t>(4 * columns)] = kNan;
    values[static_cast<size_t>(20 * columns + 7)] = kInf;
    for (int64_t i = 0; i < columns; ++i) values[static_cast<size_t>(9 * columns + i)] = 0;
    const Input x(isa_from_name("avx512"), GetParam(), values, columns);
    EXPECT_TRUE(same(product(isa_from_name("amx"), pair.tiles.packed(), x, n),
                     product(isa_from_name("avx512"), pair.vectors.packed(), x, n)));
    for (const float scale : {kInf, -0.0f, -65504.0f, 6e-8f, kNan}) {
        Pair extreme({GetParam(), {rows, columns}});
        for (One* one : {&extreme.vectors, &extreme.tiles}) {
            std::mt19937 random(5);
            std::vector<std::byte>& bytes = one->source->bytes(0);
            const size_t block_bytes = info(GetParam()).block_bytes;
            for (size_t at = 0; at < bytes.size(); at += 3 * block_bytes)
                test::put_scales(GetParam(), &bytes[at], [&] { return scale; });
            if (GetParam() == DType::mxfp4)  // every power of two
                for (size_t at = 0; at < bytes.size(); at += block_bytes)
                    bytes[at] = static_cast<std::byte>(random());
        }
        EXPECT_TRUE(same(product(isa_from_name("amx"), extreme.tiles.packed(), x, n),
                         product(isa_from_name("avx512"), extreme.vectors.packed(), x, n)))
            << scale;
    }
}

// Rows that an expert gathers.
TEST_P(TileProduct, HasTheBitsOfVectorsForGatheredRows) {
    const int64_t columns = std::max<int64_t>(block(), 544 / block() * block()), out = 40;
    const int64_t experts = 3, used = 2, rows = 150;
    Pair pair({GetParam(), {experts, out, columns}});
    std::mt19937 random(1);
    std::vector<int32_t> routes;
    for (int64_t i = 0; i < rows * used; ++i) {
        routes.push_back(random() % 8 == 0 ? 2 : static_cast<int32_t>(i % 2));
        routes.push_back(0x3f000000);
    }
    const std::vector<float> bias = random_values(static_cast<size_t>(experts * out), 8);
    for (const bool by_rank : {false, true}) {
        const Input x = input(GetParam(), by_rank ? rows * used : rows, columns);
        const Routed routed{routes, rows, used, by_rank};
        EXPECT_TRUE(same(
            expert_linear(isa_from_name("amx"), pair.tiles.packed(), x, routed, bias, 1),
            expert_linear(isa_from_name("avx512"), pair.vectors.packed(), x, routed, bias, 1)));
    }
}

std::vector<DType> block_types() {
    std::vector<DType> types;
    for (const DType type : matrix_types())
        if (is_block_type(type)) types.push_back(type);
    return types;
}

INSTANTIATE_TEST_SUITE_P(All, TileProduct, testing::ValuesIn(block_types()),
                         [](const testing::TestParamInfo<DType>& type) {
                             return std::string(plait::info(type.param).name);
                         });

}  // namespace
}  // namespace plait::cpu::products
