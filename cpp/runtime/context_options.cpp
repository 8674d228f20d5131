#include "runtime/context_options.h"

#include <algorithm>
#include <cmath>

#include "runtime/devices/fit.h"

namespace plait {
namespace {

constexpr int64_t kMaxCells = int64_t{1} << 31;

void check(const ContextOptions& o) {
    check_between<int64_t>("n_ctx", o.n_ctx.value_or(1), 1, INT32_MAX);
    check_between("n_seq_max", o.n_seq_max, 1, 65536);
    check_between("n_batch", o.n_batch, 1, 1 << 24);
    check_between("n_ubatch", o.n_ubatch, 1, 1 << 20);
    if (o.kv != "auto" && o.kv != "unified" && o.kv != "streams")
        throw InvalidArgument("kv: expected \"auto\", \"unified\" or \"streams\", got \"" + o.kv +
                              "\"");
    if (o.defrag_threshold && !(*o.defrag_threshold >= 0 && *o.defrag_threshold <= 1))
        throw InvalidArgument(text("defrag_threshold: expected 0 to 1, got ", *o.defrag_threshold));
    if (o.kv_cells) check_between<int64_t>("kv_cells", *o.kv_cells, 1, kMaxCells);
}

}  // namespace

ContextSettings resolve(const ContextOptions& options, const Model& model) {
    check(options);
    const ModelInfo& info = model.info();
    ContextSettings s;
    s.backend = options.backend;
    s.layers = options.layers;
    s.threads = options.threads;
    s.isa = options.isa;
    s.flash_attention = options.flash_attention.value_or(true);
    s.pooling = options.pooling.value_or(info.pooling);
    const bool causal = options.causal.value_or(info.causal);
    s.calls = calls_of(info, causal, options.embeddings, options.pooling);
    s.graph_reuse = options.graph_reuse;
    s.fuse = options.fuse;
    s.invariant = options.invariant;
    s.defrag_threshold = options.defrag_threshold;
    s.memory = {.n_ctx = options.n_ctx.value_or(1),
                .n_seq_max = options.n_seq_max,
                .n_cells = options.kv_cells,
                .streams = options.kv == "streams",
                .swa_full = options.swa_full,
                .keys = options.type_k,
                .values = options.type_v,
                .n_batch = options.n_batch,
                .n_ubatch = std::min(options.n_ubatch, options.n_batch),
                .axes = info.n_pos_per_token,
                .causal = causal};
    if (!options.n_ctx)
        s.memory.n_ctx = fitting_n_ctx(model.memory_specs(), s.memory, info.n_ctx_train);
    return s;
}

void check_layers(const ContextSettings& s, size_t n_devices) {
    const std::optional<int64_t> n_gpu_layers = s.layers.n_gpu_layers;
    if (n_gpu_layers && *n_gpu_layers < -1)
        throw InvalidArgument(
            text("n_gpu_layers: expected 0 or more, or -1 for all, got ", *n_gpu_layers));
    const bool other = s.backend != "cpu";
    if (n_gpu_layers && *n_gpu_layers != 0 && !other)
        throw InvalidArgument(
            text("n_gpu_layers: expected 0 with backend \"cpu\", got ", *n_gpu_layers));
    const std::vector<double>& split = s.layers.split;
    if (split.empty()) return;
    // If "auto" found no device, `split` needs one entry.
    const size_t expected = other ? std::max<size_t>(n_devices, 1) : 0;
    if (split.size() != expected)
        throw InvalidArgument(text("split: expected a share for each of the ", expected,
                                   " devices of backend \"", s.backend, "\", got ", split.size()));
    double sum = 0;
    for (const double share : split) {
        if (!std::isfinite(share) || share < 0)
            throw InvalidArgument(
                text("split: expected finite numbers of at least 0, got ", share));
        sum += share;
    }
    if (!(sum > 0)) throw InvalidArgument("split: expected a share above 0, but all shares are 0");
}

}  // namespace plait
