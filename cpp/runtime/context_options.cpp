#include "runtime/context_options.h"

#include <algorithm>
#include <cmath>

#include "memory/memory.h"
#include "runtime/devices/host_memory.h"

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

// Returns the training length (512 if the model has none), or the largest length, at least 1, whose
// cache takes at most half of the available memory.
int64_t fitting_n_ctx(const MemorySpecs& specs, const MemoryOptions& options, int64_t n_ctx_train) {
    const int64_t wanted = n_ctx_train > 0 ? n_ctx_train : 512;
    const uint64_t max_bytes = host_memory().free / 2;
    const auto bytes = [&](int64_t n_ctx) {
        MemoryOptions trial = options;
        trial.n_ctx = n_ctx;
        return layout_of(specs, trial).bytes();
    };
    if (max_bytes == 0 || bytes(wanted) <= max_bytes) return wanted;
    int64_t fits = 1, too_many = wanted;
    while (too_many - fits > 1) {
        const int64_t middle = fits + (too_many - fits) / 2;
        (bytes(middle) <= max_bytes ? fits : too_many) = middle;
    }
    return fits;
}

// Throws OutOfMemory if the host has too little memory for the cache. The system would grant the
// memory all the same, and end the process once the cache fills it. Devices refuse caches that are
// too large themselves.
void check_fits(const MemoryLayout& layout, const MemoryOptions& options, bool on_host) {
    constexpr uint64_t kRowBytes = 32;  // at most, of the table of rows
    uint64_t needed = on_host ? layout.bytes() : 0;
    for (const GroupInfo& group : layout.groups) needed += group.n_rows * kRowBytes;
    const uint64_t available = host_memory().free_with_swap;
    if (available == 0 || needed <= available) return;
    const auto megabytes = [](uint64_t bytes) { return (bytes + 999'999) / 1'000'000; };
    throw OutOfMemory(text(
        "a context with n_ctx=", options.n_ctx, " and n_seq_max=", options.n_seq_max, " needs ",
        megabytes(needed), " MB for its cache, but ", available / 1'000'000,
        " MB of memory are available; choose a smaller n_ctx, kv_cells or n_seq_max, or smaller "
        "type_k and type_v"));
}

LayerRange range_of(const std::optional<ContextOptions::Range>& given, const ModelInfo& model) {
    if (!given) return {.begin = 0, .end = model.n_layers};
    const bool drafts = given->begin >= model.n_layers && given->begin < model.n_all_layers() &&
                        given->end == given->begin + 1;
    if (!drafts &&
        (given->begin < 0 || given->end <= given->begin || given->end > model.n_layers)) {
        const std::string or_one = text(", or one of the layers ", model.n_layers, " to ",
                                        model.n_all_layers() - 1, " for multi-token prediction");
        throw InvalidArgument(text("layers: expected a range within range(0, ", model.n_layers,
                                   ") that is not empty", model.n_drafting > 0 ? or_one : "",
                                   ", got range(", given->begin, ", ", given->end, ")"));
    }
    const LayerRange range{static_cast<int>(given->begin), static_cast<int>(given->end)};
    if (!drafts && !range.is_whole(model.n_layers) && !model.joint_layers.empty())
        throw UnsupportedError(text("layers: ", model.arch,
                                    " models cannot run only some layers: ", model.joint_layers));
    return range;
}

// Makes decode() compute only these layers. `decode`: the form of all layers.
void set_layers(CallForm& decode, const LayerRange& layers, const ModelInfo& model) {
    decode.first_layer = layers.begin;
    if (layers.has_last(model.n_layers)) return;
    decode.outputs = {.logits = false, .hidden = true, .n_parts = model.n_passed_parts};
}

// `causal`, `hidden`: options of the context. `pooling`: nullopt unless the caller chose it; the
// model's own applies only where hidden states are returned anyway. Throws InvalidArgument for
// scores of a model without a head.
Calls calls_of(const ModelInfo& model, const LayerRange& layers, bool causal, bool hidden,
               std::optional<Pooling> pooling) {
    const bool pools = pooling.value_or(Pooling::none) != Pooling::none;
    CallForm decode{.name = "decode", .causal = causal, .outputs = {.hidden = hidden || pools}};
    if (!model.has_decoder) {
        decode.name = "encode";
        decode.graph = GraphKind::encode;
        decode.outputs = {.logits = false, .hidden = true};
    }
    if (decode.outputs.hidden) decode.outputs.pooling = pooling.value_or(model.pooling);
    if (decode.outputs.pooling == Pooling::rank && model.n_scores == 0)
        throw InvalidArgument(text("pooling: \"rank\" needs a classification head, and this ",
                                   model.arch,
                                   " model has none; expected \"none\", \"mean\", "
                                   "\"cls\" or \"last\""));
    if (pools && !layers.has_last(model.n_layers))
        throw InvalidArgument(
            text("pooling: expected \"none\" for layers that do not end at layer ",
                 model.n_layers - 1, ": their output is the residual stream of each token"));
    set_layers(decode, layers, model);
    if (!model.has_decoder) return {decode, decode, EncodeMemory::same};

    CallForm encode = decode;
    encode.name = "encode";
    encode.graph = GraphKind::encode;
    if (!model.has_encoder) return {decode, encode, EncodeMemory::own};
    encode.step = StepKind::encode;
    encode.causal = false;
    encode.first_layer = 0;  // every range of a decoder's layers runs the whole encoder
    encode.outputs = {.logits = false, .hidden = hidden};
    return {decode, encode, EncodeMemory::shared};
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
    s.layer_range = range_of(options.layer_range, info);
    s.calls = calls_of(info, s.layer_range, causal, options.embeddings, options.pooling);
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
    const MemorySpecs specs = model.memory_specs_of(s.layer_range);
    if (!options.n_ctx) s.memory.n_ctx = fitting_n_ctx(specs, s.memory, info.n_ctx_train);
    check_fits(layout_of(specs, s.memory), s.memory, s.backend == "cpu");
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
