// attend on one thread: one token with a long and with a short cache, prompts, and a few tokens.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/attention/attend.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/memory.h"
#include "roofline.h"
#include "tensor/dtype.h"
#include "tensor/run.h"

namespace plait::cpu {
namespace {

template <typename T>
Ref ref_to(const std::vector<T>& values) {
    return {reinterpret_cast<uintptr_t>(values.data()), kFixed};
}

// The last n_tokens of a sequence of n_keys attend, with heads of llama-1b's shape.
void attend(benchmark::State& state, Isa isa, DType dtype, bool flash) {
    const int32_t n_tokens = static_cast<int32_t>(state.range(0));
    const int32_t n_keys = static_cast<int32_t>(state.range(1));
    constexpr int32_t kHeads = 32, kKvHeads = 8, kDim = 64;
    const auto head_bytes = static_cast<int64_t>(row_bytes(dtype, kDim));
    const CacheLayout cache{dtype, kDim, head_bytes, head_bytes * kKvHeads};
    const size_t storage_bytes = static_cast<size_t>(n_keys * cache.row_bytes);
    const std::unique_ptr<Buffer> keys = allocate_host(storage_bytes);
    const std::unique_ptr<Buffer> values = allocate_host(storage_bytes);
    std::memset(keys->host(), 0x21, storage_bytes);  // small halves and scales, whatever the type
    std::memset(values->host(), 0x22, storage_bytes);
    const std::vector<float> q(static_cast<size_t>(n_tokens * kHeads * kDim), 0.01f);
    const std::vector<float> y(q.size());
    const std::vector<int32_t> token_begin = {0, n_tokens}, run_begin = {0, 1};
    const std::vector<Run> runs = {{0, n_keys, 0, 0}};
    const std::vector<int32_t> first(static_cast<size_t>(n_tokens), 0);
    std::vector<int32_t> last;
    double pairs = 0;
    for (int32_t t = 0; t < n_tokens; ++t) {
        last.push_back(n_keys - n_tokens + t + 1);
        pairs += last.back();
    }
    AttendArgs args{};
    args.q = ref_to(q);
    args.y = ref_to(y);
    args.keys = {reinterpret_cast<uintptr_t>(keys->host()), kFixed};
    args.values = {reinterpret_cast<uintptr_t>(values->host()), kFixed};
    args.token_begin = ref_to(token_begin);
    args.runs = ref_to(runs);
    args.run_begin = ref_to(run_begin);
    args.first = ref_to(first);
    args.last = ref_to(last);
    args.heads = kHeads;
    args.kv_heads = kKvHeads;
    args.key_dim = args.value_dim = kDim;
    args.tile_queries = kTileQueries;
    args.threads = 1;
    args.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    args.key_cache = args.value_cache = cache;

    Frame frame{};
    frame.n_tokens = n_tokens;
    frame.n_sequences = 1;
    std::vector<float> scratch(static_cast<size_t>(attend_scratch(args).end) + 16);
    auto* aligned = reinterpret_cast<unsigned char*>(
        (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    const Kernel& kernel = flash ? kernels(isa).attend : kernels(isa).attend_scores;
    for (auto _ : state)
        kernel.run(&args, frame, Worker{0, aligned}, 0, kernel.tasks(&args, frame));

    report_limit(state, isa, Unit::f32,
                 n_tokens == 1 && n_keys > 4096 ? 2.0 * static_cast<double>(storage_bytes) : 0.0,
                 4.0 * pairs * kHeads * kDim);
}

const bool kRegistered = [] {
    for (const Isa isa : available_isas()) {
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
            for (const bool flash : {true, false}) {
                const std::string name = std::string(flash ? "attend/" : "attend_scores/") +
                                         std::string(to_string(isa)) + "/" +
                                         std::string(info(dtype).name);
                benchmark::RegisterBenchmark(name.c_str(), attend, isa, dtype, flash)
                    ->Args({1, 32768})
                    ->Args({1, 512})
                    ->Args({512, 512})
                    ->Args({512, 4096})
                    ->Args({64, 4096})
                    ->Args({3, 4096});
            }
        }
    }
    return true;
}();

}  // namespace
}  // namespace plait::cpu
