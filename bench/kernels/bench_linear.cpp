// linear on one thread, compared with the peak rate: of reading memory for one row, of multiplying
// for many. Rounds use different matrices in turn, so that a single row reads its weights from
// memory, not from a cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/products/linear.h"
#include "backend/cpu/weights/weights.h"
#include "bytes.h"
#include "product_rows.h"
#include "roofline.h"

namespace plait::cpu {
namespace {

constexpr uint64_t kWeightBytes = uint64_t{256} << 20;  // several last-level caches

void product(benchmark::State& state, Isa isa, DType dtype, int64_t rows, int64_t columns,
             int64_t n) {
    const uint64_t bytes = TensorType{dtype, {rows, columns}}.bytes();
    const auto matrices =
        static_cast<int64_t>(n == 1 ? std::max<uint64_t>(1, kWeightBytes / bytes) : 1);
    CpuWeights store(std::make_shared<Bytes>(TensorType{dtype, {matrices, rows, columns}}), isa);
    LinearArgs args{};
    args.weight = store.matrix(0, 1);
    args.fixed_rows = n;

    const ProductRows x(isa, args.weight, n, 1);
    std::vector<float> y(static_cast<size_t>(n * rows));
    args.y.offset = reinterpret_cast<uint64_t>(y.data());
    Scratch scratch(product_scratch_bytes(args.weight));

    const PackedWeight first = args.weight;
    int64_t turn = 0;
    for (auto _ : state) {
        args.x = x.convert(scratch.data());
        args.weight.data = first.data + turn++ % matrices * first.matrix_bytes;
        run(kernels(isa).linear, args, scratch.data());
        benchmark::ClobberMemory();
    }
    // Many rows read the weights from a cache.
    report_limit(state, isa, x.unit(dtype), n == 1 ? static_cast<double>(bytes) : 0.0,
                 2.0 * static_cast<double>(rows * columns * n));
}

const bool registered = [] {
    for (const Isa isa : available_isas()) {
        if (isa->panel_lanes == 1) continue;  // too slow to wait for
        for (const DTypeInfo& type : all_dtypes()) {
            if (type.dtype == DType::i32) continue;
            for (const auto& [rows, columns] :
                 {std::pair<int64_t, int64_t>{4864, 896}, {8192, 2048}, {2048, 8192}}) {
                for (const int64_t n : {1, 4, 8, 16, 512}) {
                    if (columns % type.block_elements != 0) continue;
                    const std::string name = "linear/" + std::string(to_string(isa)) + "/" +
                                             std::string(type.name) + "/" + std::to_string(rows) +
                                             "x" + std::to_string(columns) + "/" +
                                             std::to_string(n);
                    benchmark::RegisterBenchmark(name.c_str(), product, isa, type.dtype, rows,
                                                 columns, n)
                        ->Unit(benchmark::kMicrosecond);
                }
            }
        }
    }
    return true;
}();

}  // namespace
}  // namespace plait::cpu
