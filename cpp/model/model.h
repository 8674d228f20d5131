// An architecture with its weights. Immutable after loading; contexts share it.
#pragma once

#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/plan_key.h"
#include "memory/layout.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace plait {

enum class Pooling : uint8_t { none, mean, cls, last, rank };

// The layers that a context runs: [begin, end) of the model's.
struct LayerRange {
    int begin = 0;
    int end = INT_MAX;  // INT_MAX: to the last layer

    bool has(int layer) const { return begin <= layer && layer < end; }
    bool has_first() const { return begin == 0; }
    bool has_last(int n_layers) const { return end >= n_layers; }
    bool is_whole(int n_layers) const { return has_first() && has_last(n_layers); }
    friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct ModelInfo {
    std::string arch;
    int64_t n_vocab = 0;
    int64_t n_ctx_train = 0;  // 0 if the file has no such key
    int64_t n_positions = 0;  // positions that have a learned vector; 0: positions are not limited
    int width = 0;            // of the residual stream
    int n_layers = 0;
    // Layers for multi-token prediction, which follow the others; 0 if the file has none or its
    // architecture's are not supported. A context runs either the other layers or one of these.
    int n_drafting = 0;
    int n_input_parts =
        1;  // parts of an embedding input, each of `width` elements; see arch/qwen.cpp
    int given_width = 0;  // of an embedding input; 0: n_input_parts * width
    // Parts of what a layer passes to the next, each of `width` elements; the first is the residual
    // stream. See arch/rwkv7.cpp.
    int n_passed_parts = 1;
    // Why later layers cannot run without the earlier ones; empty if they can.
    std::string_view joint_layers;
    int n_pos_per_token = 1;  // 4 for M-RoPE
    bool causal = true;
    bool has_decoder = true;   // false: only encode() works
    bool has_encoder = false;  // the decoder attends to the output of an encoder
    Pooling pooling = Pooling::none;
    int n_scores = 0;               // per sequence, from a scoring head; 0: no head
    Pooling scored = Pooling::cls;  // pooling for the head if `pooling` is rank
    int n_all_layers() const { return n_layers + n_drafting; }
    bool drafts(const LayerRange& layers) const { return layers.begin >= n_layers; }
    // Elements of an embedding input of the first of these layers.
    int input_width(const LayerRange& layers) const {
        if (drafts(layers)) return 2 * width;  // a hidden state and the embedding of a token
        if (!layers.has_first()) return n_passed_parts * width;
        return given_width > 0 ? given_width : n_input_parts * width;
    }
};

// The fixed settings of a context that a graph may depend on.
struct BuildOptions {
    int64_t n_ctx = 0;        // cells per sequence; selects the LongRoPE factors
    int n_pos_per_token = 1;  // columns of the positions input
    LayerRange layers;
};

class Step;

class Model {
public:
    virtual ~Model() = default;

    const ModelInfo& info() const { return info_; }
    virtual MemorySpecs memory_specs() const = 0;
    // The same, without the states of the decoder's layers outside of the range.
    MemorySpecs memory_specs_of(const LayerRange& layers) const;

    // A pure function: equal arguments give equal graphs.
    Graph build(const PlanKey& key, const MemoryLayout& layout, const BuildOptions& options) const;

    // How the stored keys of a layer are rotated when positions shift. Exists only for layers whose
    // AttentionSpec has `shifts`.
    struct KeyRotation {
        Rope rope;
        Weight factors;  // optional
        int begin = 0;   // first rotated element of a head
    };
    virtual KeyRotation key_rotation(int layer, const BuildOptions& options) const;

protected:
    explicit Model(ModelInfo info) : info_(std::move(info)) {}

    // Builds the model for one microbatch, from inputs to outputs.
    virtual void build_decoder(Step& step) const = 0;
    // If info().has_encoder: builds the encoder, from inputs to the stored keys and values that the
    // decoder attends to.
    virtual void build_encoder(Step& step) const { build_decoder(step); }
    // If info().n_scores > 0: builds the scoring head, from pooled rows to scores.
    virtual void build_scores(Step& step) const;

private:
    Graph build_copy_rows(const PlanKey& key, const MemoryLayout& layout) const;
    Graph build_shift_keys(const PlanKey& key, const MemoryLayout& layout,
                           const BuildOptions& options) const;

    ModelInfo info_;
};

// Reads the keys that every architecture has. Throws ModelError if one is missing.
ModelInfo read_info(const Hparams& hparams, const Weights& weights);

// Makes the model that general.architecture names. Throws UnsupportedError, which lists the known
// names, if there is no such architecture.
std::unique_ptr<Model> make_model(const Weights& weights);
std::vector<std::string> architectures();

}  // namespace plait
