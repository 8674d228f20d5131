// head_linear on one thread, as in latent attention. Rounds use the heads of different layers in
// turn, so that a single row reads its weights from memory, not from a cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
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
constexpr int64_t kHeads = 16;

void heads(benchmark::State& state, Isa isa, DType dtype, int64_t rows, int64_t columns,
           int64_t n) {
    const uint64_t bytes = TensorType{dtype, {kHeads, rows, columns}}.bytes();
    const auto layers =
        static_cast<int64_t>(n == 1 ? std::max<uint64_t>(1, kWeightBytes / bytes) : 1);
    CpuWeights store(std::make_shared<Bytes>(TensorType{dtype, {layers * kHeads, rows, columns}}),
                     isa);
    HeadLinearArgs args{};
    args.weight = store.matrix(0, 1);
    args.weight.matrices = kHeads;
    args.fixed_rows = n;

    const ProductRows x(isa, args.weight, n, kHeads);
    std::vector<float> y(static_cast<size_t>(n * kHeads * rows));
    args.y.offset = reinterpret_cast<uint64_t>(y.data());
    Scratch scratch(product_scratch_bytes(args.weight));

    const unsigned char* first = args.weight.data;
    int64_t turn = 0;
    for (auto _ : state) {
        args.x = x.convert(scratch.data());
        args.weight.data = first + turn++ % layers * kHeads * args.weight.matrix_bytes;
        run(kernels(isa).head_linear, args, scratch.data());
        benchmark::ClobberMemory();
    }
    // Many rows read the weights from a cache.
    report_limit(state, isa, x.unit(dtype), n == 1 ? static_cast<double>(bytes) : 0.0,
                 2.0 * static_cast<double>(kHeads * rows * columns * n));
}

const bool kRegistered = [] {
    for (const Isa isa : available_isas()) {
        if (isa->panel_lanes == 1) continue;  // too slow to wait for
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
            for (const auto& [rows, columns] :
                 {std::pair<int64_t, int64_t>{512, 128}, {128, 512}}) {
                for (const int64_t n : {1, 8, 256}) {
                    const std::string name = "head_linear/" + std::string(to_string(isa)) + "/" +
                                             std::string(info(dtype).name) + "/" +
                                             std::to_string(rows) + "x" + std::to_string(columns) +
                                             "/" + std::to_string(n);
                    benchmark::RegisterBenchmark(name.c_str(), heads, isa, dtype, rows, columns, n)
                        ->Unit(benchmark::kMicrosecond);
                }
            }
        }
    }
    return true;
}();

}  // namespace
}  // namespace plait::cpu
