#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "memory/attention.h"
#include "memory/memory.h"

namespace plait {
namespace {

constexpr std::array kCacheTypes = {DType::f32,  DType::f16,  DType::bf16,
                                    DType::q8_0, DType::q5_1, DType::q5_0,
                                    DType::q4_1, DType::q4_0, DType::iq4_nl};

void check_type(DType dtype, std::string_view what) {
    if (std::find(kCacheTypes.begin(), kCacheTypes.end(), dtype) == kCacheTypes.end())
        throw InvalidArgument(text(what, " cannot be cached as ", info(dtype).name));
}

void check_options(const MemoryOptions& options) {
    if (options.n_ctx < 1 || options.n_ctx > INT32_MAX)
        throw InvalidArgument(text("n_ctx is ", options.n_ctx, ", expected 1..", INT32_MAX));
    if (options.n_seq_max < 1)
        throw InvalidArgument(text("n_seq_max is ", options.n_seq_max, ", expected 1 or more"));
    if (options.n_ubatch < 1 || options.n_batch < 1)
        throw InvalidArgument(text("n_batch is ", options.n_batch, " and n_ubatch ",
                                   options.n_ubatch, ", expected 1 or more"));
    if (options.axes != 1 && options.axes != 4)
        throw InvalidArgument(text("a token has ", options.axes, " positions, expected 1 or 4"));
    check_type(options.keys, "keys");
    check_type(options.values, "values");
}

int64_t count_cells(const MemoryOptions& options) {
    const int64_t all = options.n_ctx * options.n_seq_max;
    const int64_t cells = options.n_cells.value_or(all);
    if (options.streams && cells != all)
        throw InvalidArgument(text("kv_cells is ", cells, ", but with kv=\"streams\" each of ",
                                   options.n_seq_max, " sequences has n_ctx = ", options.n_ctx,
                                   " cells, together ", all));
    if (cells < 1 || cells > INT32_MAX)
        throw InvalidArgument(
            text("a cache of ", cells, " cells was asked for (n_ctx = ", options.n_ctx,
                 ", n_seq_max = ", options.n_seq_max, "), expected 1..", INT32_MAX));
    return cells;
}

void check_specs(const MemorySpecs& specs) {
    bool any = false;
    for (const auto& layer : specs) {
        for (const StateSpec& spec : layer) {
            any = true;
            if (std::holds_alternative<RecurrentSpec>(spec))
                throw UnsupportedError(
                    "recurrent layers are not supported: no memory keeps their states");
            if (std::holds_alternative<CrossSpec>(spec))
                throw UnsupportedError(
                    "cross attention is not supported: no memory keeps an encoder's output");
            const auto& attention = std::get<AttentionSpec>(spec);
            PLAIT_CHECK(attention.n_kv_heads > 0 && attention.key_dim > 0);
            PLAIT_CHECK(attention.window.kind == WindowKind::full || attention.window.tokens > 0);
        }
    }
    if (!any) throw UnsupportedError("models whose layers remember nothing are not supported");
}

}  // namespace

std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options) {
    check_options(options);
    check_specs(specs);
    MemoryOptions sized = options;
    sized.n_cells = count_cells(options);
    return std::make_unique<AttentionMemory>(attention_layout(specs, sized, *sized.n_cells), sized);
}

}  // namespace plait
