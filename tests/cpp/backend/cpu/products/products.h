// Runs the kernels of matrix products on plain vectors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/claim.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/products/experts.h"
#include "backend/cpu/kernels/products/linear.h"
#include "backend/cpu/weights/weights.h"
#include "support/random_weights.h"
#include "tensor/convert.h"
#include "tensor/half.h"

namespace plait::cpu::products {

template <typename T>
Ref fixed(const T* p) {
    return {reinterpret_cast<uint64_t>(p), kFixed};
}

inline std::vector<DType> matrix_types() {
    std::vector<DType> types;
    for (const DTypeInfo& t : all_dtypes())
        if (t.dtype != DType::i32) types.push_back(t.dtype);
    return types;
}

inline std::vector<float> random_values(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    return values;
}

// Aligned like a thread's scratch.
class Scratch {
public:
    explicit Scratch(uint64_t bytes) : bytes_(bytes + 64) {}
    unsigned char* data() {
        return reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) &
                                                ~uintptr_t{63});
    }

private:
    std::vector<unsigned char> bytes_;
};

// Runs `grain` tasks at a time; if it is negative, -grain tasks at a time in reverse order.
template <class Args>
void run(const KernelOf<Args>& kernel, const Args& args, int64_t grain = 1 << 20,
         uint64_t scratch_bytes = 0, Claim* claim = nullptr) {
    const Frame frame{};
    Scratch scratch(scratch_bytes);
    const Worker worker{0, scratch.data(), claim};
    const int64_t tasks = kernel.tasks(&args, frame);
    const int64_t step = std::abs(grain);
    for (int64_t i = 0; i < (tasks + step - 1) / step; ++i) {
        const int64_t chunk = grain > 0 ? i : (tasks + step - 1) / step - 1 - i;
        kernel.run(&args, frame, worker, chunk * step, std::min(tasks, (chunk + 1) * step));
    }
}

// Opens a claim and takes it over, as another thread does from one that is late.
inline void lose(Claim& claim) {
    claim.open();
    uint64_t seen = 0;
    EXPECT_TRUE(claim.is_open(&seen) && claim.take_over(seen));
}

inline std::vector<int32_t> quantized(Isa isa, const std::vector<float>& x, int64_t columns) {
    std::vector<int32_t> words(x.size() / 32 * 10);
    QuantizeRowsArgs args{};
    args.x = fixed(x.data());
    args.y = fixed(words.data());
    args.fixed_rows = static_cast<int64_t>(x.size()) / columns;
    args.rows_per_item = 1;
    args.columns = columns;
    run(kernels(isa).quantize_rows, args);
    return words;
}

inline QuantizedRow row_of(const std::vector<int32_t>& words, int64_t columns, int64_t row) {
    auto* bytes = reinterpret_cast<unsigned char*>(const_cast<int32_t*>(words.data()));
    const auto n = static_cast<int64_t>(words.size()) / (columns / 32 * 10);
    return quantized_row(bytes, n, columns, row);
}

inline std::vector<int32_t> rounded(Isa isa, const std::vector<float>& x, int64_t columns,
                                    int parts) {
    const auto rows = static_cast<int64_t>(x.size()) / columns;
    std::vector<int32_t> words(static_cast<size_t>(rows * parts * ((columns + 31) / 32) * 16));
    RoundRowsArgs args{};
    args.x = fixed(x.data());
    args.y = fixed(words.data());
    args.fixed_rows = rows;
    args.rows_per_item = 1;
    args.columns = columns;
    args.parts = parts;
    run(kernels(isa).round_rows, args);
    return words;
}

// The values of rounded rows: the sums of their parts.
inline std::vector<float> sums_of_parts(const std::vector<int32_t>& words, int64_t columns,
                                        int parts) {
    const int64_t row_words = parts * ((columns + 31) / 32) * 16;
    const int64_t rows = static_cast<int64_t>(words.size()) / row_words;
    auto* all = reinterpret_cast<unsigned char*>(const_cast<int32_t*>(words.data()));
    std::vector<float> x(static_cast<size_t>(rows * columns));
    for (int64_t r = 0; r < rows; ++r) {
        const RoundedRow row = rounded_row(all, rows, columns, parts, r);
        for (int64_t k = 0; k < columns; ++k)
            for (int part = 0; part < parts; ++part)
                x[static_cast<size_t>(r * columns + k)] +=
                    bf16_to_f32(row.at(part, k / 32)[k % 32]);
    }
    return x;
}

// The values of quantised rows.
inline std::vector<float> restored(const std::vector<int32_t>& words, int64_t columns) {
    std::vector<float> x(words.size() / 10 * 32);
    for (size_t i = 0; i < x.size(); ++i) {
        const auto at = static_cast<int64_t>(i), block = at % columns / 32;
        const QuantizedRow row = row_of(words, columns, at / columns);
        x[i] = *row.block_scale(block) * static_cast<float>(row.block_codes(block)[i % 32]);
    }
    return x;
}

inline std::vector<float> dequantized(const TensorType& type, const std::vector<std::byte>& bytes) {
    std::vector<float> values(static_cast<size_t>(type.shape.elements()));
    dequantize(type.dtype, bytes.data(), values.data(), values.size());
    return values;
}

// Activations in the form that products with a weight type take: f32, or quantised words.
struct Input {
    Input(Isa isa, DType weight, const std::vector<float>& x, int64_t columns) : exact(x) {
        if (weight == DType::bf16 && isa->bf16_dot_is_fast)  // multiplies in pairs of BF16
            for (float& value : exact) value = bf16_to_f32(f32_to_bf16(value));
        switch (row_form(*isa, weight)) {
        case RowForm::f32: return;
        case RowForm::bytes:
            words = quantized(isa, x, columns);
            exact = restored(words, columns);
            return;
        case RowForm::bf16:
        case RowForm::two_bf16: {
            const int parts = parts_of(row_form(*isa, weight));
            words = rounded(isa, x, columns, parts);
            exact = sums_of_parts(words, columns, parts);
        }
        }
    }
    Ref ref() const { return words.empty() ? fixed(exact.data()) : fixed(words.data()); }

    std::vector<float> exact;  // the values that the product multiplies
    std::vector<int32_t> words;
};

inline std::vector<float> linear(Isa isa, const PackedWeight& weight, const Input& x, int64_t n,
                                 const std::vector<float>* bias = nullptr, int64_t grain = 1 << 20,
                                 Claim* claim = nullptr,
                                 const std::vector<float>* residual = nullptr) {
    // Guards on both sides detect writes outside of the result.
    constexpr size_t kGuard = 16;
    std::vector<float> y(static_cast<size_t>(n * weight.rows) + 2 * kGuard, 12345.0f);
    LinearArgs args{};
    args.x = x.ref();
    args.y = fixed(y.data() + kGuard);
    args.has_bias = bias != nullptr;
    if (bias) args.bias = fixed(bias->data());
    args.has_residual = residual != nullptr;
    if (residual) args.residual = fixed(residual->data());
    args.fixed_rows = n;
    args.weight = weight;
    run(kernels(isa).linear, args, grain,
        static_cast<uint64_t>(product_scratch_bytes(weight) + (claim ? kRedoFloats * 4 : 0)),
        claim);
    for (size_t i = 0; i < kGuard; ++i) {
        EXPECT_EQ(y[i], 12345.0f);
        EXPECT_EQ(y[y.size() - 1 - i], 12345.0f);
    }
    return {y.begin() + kGuard, y.end() - kGuard};
}

// The routes of `rows` tokens to `used` experts each.
struct Routed {
    const std::vector<int32_t>& routes;
    int64_t rows, used;
    bool x_by_rank;  // a row of x for every pair, not for every token
};

inline std::vector<float> expert_linear(Isa isa, const PackedWeight& weight, const Input& x,
                                        const Routed& routed, const std::vector<float>& bias,
                                        int64_t grain = 1 << 20, Claim* claim = nullptr) {
    const int64_t pairs = routed.rows * routed.used;
    std::vector<float> y(static_cast<size_t>(pairs * weight.rows), 12345.0f);
    ExpertLinearArgs args{};
    args.x = x.ref();
    args.routes = fixed(routed.routes.data());
    args.bias = fixed(bias.data());
    args.y = fixed(y.data());
    args.has_bias = 1;
    args.x_by_rank = routed.x_by_rank;
    args.used = static_cast<int32_t>(routed.used);
    args.fixed_rows = routed.rows;
    args.weight = weight;
    run(kernels(isa).expert_linear, args, grain,
        static_cast<uint64_t>(expert_linear_scratch_bytes(weight, pairs)), claim);
    return y;
}

struct One {
    std::shared_ptr<test::RandomWeights> source = std::make_shared<test::RandomWeights>();
    std::unique_ptr<CpuWeights> store;
    One(Isa isa, const TensorType& type) {
        source->add(type);
        store = std::make_unique<CpuWeights>(source, isa);
    }
    const PackedWeight& packed() { return store->matrix(0, 2); }
    std::vector<float> values() const { return dequantized(source->type(0), source->bytes(0)); }
};

// Every instruction set of this machine with every weight type of products.
struct Case {
    Isa isa;
    DType dtype;
};

// Compares the rows of a product with the same rows of another: their bits, unless the instruction
// set lets them depend on the other rows.
inline bool same_rows(Isa isa, const std::vector<float>& a, const std::vector<float>& b) {
    if (isa->is_invariant() || a.size() != b.size()) return a == b;
    const auto near = [](float x, float y) { return std::abs(x - y) <= 3e-4f * (1 + std::abs(y)); };
    return std::equal(a.begin(), a.end(), b.begin(), near);
}

inline std::vector<Case> cases() {
    std::vector<Case> all;
    for (const Isa isa : available_isas())
        for (const DType dtype : matrix_types()) all.push_back({isa, dtype});
    return all;
}
inline std::string case_name(const testing::TestParamInfo<Case>& info) {
    return std::string(to_string(info.param.isa)) + "_" +
           std::string(plait::info(info.param.dtype).name);
}

}  // namespace plait::cpu::products
