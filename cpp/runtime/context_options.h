// The options of a context as given by the caller, and the settings that result from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout.h"
#include "model/model.h"
#include "runtime/calls.h"
#include "runtime/devices/place_layers.h"
#include "tensor/dtype.h"

namespace plait {

struct ContextOptions {
    std::optional<int64_t> n_ctx;  // nullopt: the training length, or less if memory is short
    int32_t n_seq_max = 1;
    std::string kv = "auto";  // "unified" | "streams"
    std::optional<int64_t> kv_cells;
    DType type_k = DType::f16;
    DType type_v = DType::f16;
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    std::string backend = "cpu";
    LayerOptions layers;  // placement of layers on devices
    struct Range {
        int64_t begin, end;
    };
    std::optional<Range> layer_range;  // nullopt: all layers of the model
    std::optional<int> threads;
    std::optional<std::string> isa;
    std::optional<bool> flash_attention;
    bool embeddings = false;
    std::optional<Pooling> pooling;  // nullopt: the model's own
    std::optional<bool> causal;
    bool graph_reuse = true;
    bool fuse = true;
    bool invariant = true;
    bool swa_full = false;
    std::optional<double> defrag_threshold = 0.5;  // nullopt: never automatically
};

// The options of a context after the defaults have been chosen. All values are valid, except that
// `backend` and `isa` may name something that this machine does not have.
struct ContextSettings {
    MemoryOptions memory;  // of decode()
    std::string backend;
    LayerOptions layers;
    LayerRange layer_range;  // that the context runs
    std::optional<int> threads;
    std::optional<std::string> isa;
    bool flash_attention = true;
    Pooling pooling = Pooling::none;
    Calls calls;
    bool graph_reuse = true;
    bool fuse = true;
    bool invariant = true;
    std::optional<double> defrag_threshold;

    int64_t n_ctx() const { return memory.n_ctx; }
    int32_t n_seq_max() const { return memory.n_seq_max; }
    int32_t n_batch() const { return memory.n_batch; }
    int32_t n_ubatch() const { return memory.n_ubatch; }  // at most n_batch
};

// Throws InvalidArgument if an argument is not between `min` and `max`.
template <typename T>
void check_between(const char* argument, T value, T min, T max) {
    if (value < min || value > max)
        throw InvalidArgument(text(argument, ": expected ", min, " to ", max, ", got ", value));
}

// Checks the options and chooses the defaults for a model. Throws InvalidArgument, which names the
// option, its value and what was expected; OutOfMemory if the host has too little memory for the
// cache.
ContextSettings resolve(const ContextOptions& options, const Model& model);

// Throws InvalidArgument if the placement of layers does not suit these devices. `n_devices`:
// number of named devices, excluding the CPU.
void check_layers(const ContextSettings& settings, size_t n_devices);

}  // namespace plait
