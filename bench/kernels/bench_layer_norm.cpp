// layer_norm on one thread, with rows that stay in the first level cache.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/norms/norms.h"

namespace plait::cpu {
namespace {

void layer_norm(benchmark::State& state, Isa isa) {
    const int64_t width = state.range(0);
    const std::vector<float> x(static_cast<size_t>(width), 0.5f), w(x);
    std::vector<float> y(x.size());
    const auto ref_to = [](const std::vector<float>& values) {
        return Ref{reinterpret_cast<uintptr_t>(values.data()), kFixed};
    };
    NormArgs args{};
    args.x = ref_to(x);
    args.weight = args.bias = ref_to(w);
    args.y = ref_to(y);
    args.has_weight = args.has_bias = true;
    args.weights = 1;
    args.vectors = {Extent::fixed, 1, 1, width};
    args.epsilon = 1e-5f;
    const Frame frame{};
    const Kernel& kernel = kernels(isa).layer_norm;
    for (auto _ : state) {
        kernel.run(&args, frame, Worker{}, 0, 1);
        benchmark::DoNotOptimize(y.data());
    }
    state.SetItemsProcessed(state.iterations() * width);
}

const bool kRegistered = [] {
    for (const Isa isa : available_isas())
        benchmark::RegisterBenchmark(("layer_norm/" + std::string(to_string(isa))).c_str(),
                                     layer_norm, isa)
            ->Arg(128)
            ->Arg(2048)
            ->Arg(8192);
    return true;
}();

}  // namespace
}  // namespace plait::cpu
