// store_rows, copy_rows, select_rows.
#include "backend/cpu/kernels/rows/rows.h"

#include <cstring>

#include "backend/cpu/kernel_harness.h"
#include "backend/cpu/kernels/attention/cache_rows.h"
#include "support/closest_rows.h"
#include "tensor/convert.h"

namespace plait::cpu {
namespace {

class RowsTest : public KernelTest {};

constexpr DType kCacheTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,  DType::q4_0,
                                 DType::q4_1, DType::q5_0, DType::q5_1, DType::iq4_nl};

// The bytes are those of the scalar definition, for heads with whole and with partial blocks.
TEST_P(RowsTest, StoresInEveryCacheType) {  // # S0-04 # S2-30
    for (const DType dtype : kCacheTypes) {
        for (const int64_t width : {1, 15, 20, 32, 64, 100}) {
            const int64_t block = info(dtype).block_elements;
            const int64_t padded = (width + block - 1) / block * block;
            const int64_t n = 5, heads = 3, rows = 9;
            Floats x = random_floats(n * heads * width, random);
            x[3] = 0.0f;
            const std::vector<int32_t> where = {7, 0, 3, 8, 4};
            const size_t bytes = row_bytes(dtype, heads * padded);
            std::vector<std::byte> storage(rows * bytes, std::byte{0xaa}), expected = storage;
            for (int64_t t = 0; t < n; ++t) {
                std::vector<float> row(heads * padded, 0.0f);
                for (int64_t h = 0; h < heads; ++h)
                    std::copy_n(x.data() + (t * heads + h) * width, width, row.data() + h * padded);
                test::store_row(dtype, row.data(), expected.data() + where[t] * bytes,
                                heads * padded);
            }
            StoreRowsArgs args{};
            args.storage = ref_to(storage);
            args.x = ref_to(x);
            args.rows = ref_to(where);
            args.dtype = dtype;
            args.extent = Extent::tokens;
            args.heads = heads;
            args.width = width;
            args.head_elements = padded;
            args.row_bytes = bytes;
            run_kernel(kernels().store_rows, args, tokens(n), padded * sizeof(float), Cut::random);
            EXPECT_EQ(storage, expected) << info(dtype).name << " " << width;
        }
    }
}

TEST_P(RowsTest, HalvesRoundAsTheReferenceDoes) {
    Floats x({0.0f, -0.0f, kInf, -kInf, kNan, 65504.0f, 65519.9f, 65520.0f, 1e-8f, 6e-8f, -1e-40f,
              3e38f, 1.00048828125f, 1.00146484375f, 1.00390625f, 1.01171875f});
    for (const DType dtype : {DType::f16, DType::bf16}) {
        std::vector<uint16_t> storage(x.size()), expected(x.size());
        quantize(dtype, x.data(), reinterpret_cast<std::byte*>(expected.data()), x.size());
        const std::vector<int32_t> where = {0};
        StoreRowsArgs args{};
        args.storage = ref_to(storage);
        args.x = ref_to(x);
        args.rows = ref_to(where);
        args.dtype = dtype;
        args.extent = Extent::tokens;
        args.heads = 1;
        args.width = args.head_elements = x.size();
        args.row_bytes = 2 * x.size();
        run_kernel(kernels().store_rows, args, tokens(1), x.size() * sizeof(float));
        EXPECT_EQ(storage, expected);
    }
}

// Rows are copied in the order of the list, so a row may be read after it was written.
TEST_P(RowsTest, CopiesInOrder) {  // # S3-11
    for (const size_t bytes : {1u, 34u, 1024u, 2500u}) {
        std::vector<unsigned char> storage(6 * bytes);
        for (unsigned char& byte : storage) byte = static_cast<unsigned char>(random());
        std::vector<unsigned char> expected = storage;
        const std::vector<int32_t> from = {0, 1, 5, 2, 4}, to = {1, 2, 0, 3, 4};
        for (size_t i = 0; i < from.size(); ++i)
            std::memmove(&expected[to[i] * bytes], &expected[from[i] * bytes], bytes);
        CopyRowsArgs args{};
        args.storage = ref_to(storage);
        args.from = ref_to(from);
        args.to = ref_to(to);
        args.extent = Extent::moves;
        args.row_bytes = bytes;
        run_kernel(kernels().copy_rows, args, moves(5), 0, Cut::random);
        EXPECT_EQ(storage, expected);
        run_kernel(kernels().copy_rows, args, moves(0));
        EXPECT_EQ(storage, expected);
    }
}

TEST_P(RowsTest, SelectsRows) {
    const Floats x = random_floats(4 * 13, random);
    const std::vector<int32_t> which = {3, 0, 3};
    Floats y(3 * 13);
    SelectRowsArgs args{ref_to(x), ref_to(which),     ref_to(y), Extent::outputs,
                        0,         13 * sizeof(float)};
    Frame frame{};
    frame.n_outputs = 3;
    run_kernel(kernels().select_rows, args, frame, 0, Cut::single);
    for (int64_t i = 0; i < 3 * 13; ++i) EXPECT_EQ(y[i], x[which[i / 13] * 13 + i % 13]);
}

TEST_P(RowsTest, EditsPickedRowsAndCopiesTheBitsOfOthers) {
    const int64_t n = 5, width = 13;
    Floats x = random_floats(n * width, random);
    x[0] = -0.0f;
    x[1] = 1e-41f;  // a denormal float
    const Floats rows = random_floats(3 * width, random);
    const auto change = [](RowChange c) { return static_cast<int32_t>(c); };
    const std::vector<int32_t> picks = {-1, change(RowChange::scale),
                                        7,  change(RowChange::add),
                                        0,  change(RowChange::replace),
                                        20, change(RowChange::scale),
                                        -1, 0};
    Floats y(n * width);
    EditRowsArgs args{};
    args.x = ref_to(x);
    args.rows = ref_to(rows);
    args.picks = ref_to(picks);
    args.y = ref_to(y);
    args.extent = Extent::tokens;
    args.row_elements = width;
    run_kernel(kernels().edit_rows, args, tokens(n));
    EXPECT_EQ(std::memcmp(y.data(), x.data(), width * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(&y[4 * width], &x[4 * width], width * sizeof(float)), 0);
    for (int64_t i = 0; i < width; ++i) {
        EXPECT_EQ(y[width + i], x[width + i] + rows[7 + i]);
        EXPECT_EQ(y[2 * width + i], rows[i]);
        EXPECT_EQ(y[3 * width + i], x[3 * width + i] * rows[20 + i]);
    }
}

PLAIT_ON_EVERY_ISA(RowsTest);

}  // namespace
}  // namespace plait::cpu
