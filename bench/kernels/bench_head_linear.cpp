// head_linear on one thread, as in latent attention. Rounds use the heads of different layers in
// turn, so that a single row reads its weights from memory, not from a cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/products/linear.h"
#include "backend/cpu/weights/weights.h"
#include "bytes.h"
#include "roofline.h"

namespace plait::cpu {
namespace {

constexpr uint64_t kWeightBytes = uint64_t{256} << 20;  // several last-level caches
constexpr int64_t kHeads = 16;

template <class Args>
void run(const KernelOf<Args>& kernel, const Args& args, unsigned char* scratch) {
    const Frame frame{};
    kernel.run(&args, frame, Worker{0, scratch}, 0, kernel.tasks(&args, frame));
}

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

    std::vector<float> x(static_cast<size_t>(n * kHeads * columns));
    std::vector<float> y(static_cast<size_t>(n * kHeads * rows));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
    std::vector<int32_t> words(x.size() / 32 * 10);
    QuantizeRowsArgs round{};
    round.x.offset = reinterpret_cast<uint64_t>(x.data());
    round.y.offset = reinterpret_cast<uint64_t>(words.data());
    round.fixed_rows = n;
    round.rows_per_item = kHeads;
    round.columns = columns;
    args.x = round.x;
    args.y.offset = reinterpret_cast<uint64_t>(y.data());
    std::vector<unsigned char> scratch(static_cast<size_t>(product_scratch_bytes(args.weight)));

    const unsigned char* first = args.weight.data;
    int64_t turn = 0;
    for (auto _ : state) {
        if (is_block_type(dtype)) {  // counted as well, since a model also quantises its rows
            run(kernels(isa).quantize_rows, round, scratch.data());
            args.x = round.y;
        }
        args.weight.data = first + turn++ % layers * kHeads * args.weight.matrix_bytes;
        run(kernels(isa).head_linear, args, scratch.data());
        benchmark::ClobberMemory();
    }
    const Unit unit = is_block_type(dtype)   ? Unit::int8
                      : dtype == DType::bf16 ? Unit::bf16
                                             : Unit::f32;
    // Many rows read the weights from a cache.
    report_limit(state, isa, unit, n == 1 ? static_cast<double>(bytes) : 0.0,
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
