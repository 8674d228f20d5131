// An architecture bound to its weights. Immutable after loading; shared between contexts.
#pragma once

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

struct ModelInfo {
    std::string arch;
    int64_t n_vocab = 0;
    int64_t n_ctx_train = 0;  // 0 where the file says nothing
    int64_t n_positions = 0;  // that the model has vectors for; 0: any number
    int width = 0;            // of the residual stream
    int n_layers = 0;
    int n_pos_per_token = 1;  // 4 for M-RoPE
    bool causal = true;
    bool has_decoder = true;   // false: encode() only
    bool has_encoder = false;  // an encoder whose output the decoder attends to
    Pooling pooling = Pooling::none;
    int n_scores = 0;               // of a sequence, by a head of the model; 0: it has none
    Pooling scored = Pooling::cls;  // what is pooled for that head, where pooling is "rank"
};

// What a context fixes for its life, as far as a graph may depend on it.
struct BuildOptions {
    int64_t n_ctx = 0;        // cells of one sequence: chooses LongRoPE factors
    int n_pos_per_token = 1;  // axes of the positions input
};

class Step;

class Model {
public:
    virtual ~Model() = default;

    const ModelInfo& info() const { return info_; }
    virtual MemorySpecs memory_specs() const = 0;

    // Pure: same arguments, same graph. It is given no batch and no view, so it cannot do otherwise.
    Graph build(const PlanKey& key, const MemoryLayout& layout, const BuildOptions& options) const;

    // How stored keys of a layer are rotated when positions shift; called for specs that shift.
    struct KeyRotation {
        Rope rope;
        Weight factors;  // optional
        int begin = 0;   // first element of a head that is rotated
    };
    virtual KeyRotation key_rotation(int layer, const BuildOptions& options) const;

protected:
    explicit Model(ModelInfo info) : info_(std::move(info)) {}

    // The whole model on one piece, from inputs to outputs.
    virtual void build_decoder(Step& step) const = 0;
    // Where an encoder's output is what the decoder attends to: from inputs to the caches of it.
    virtual void build_encoder(Step& step) const { build_decoder(step); }
    // Of a model with a head that scores: from what was pooled of sequences to their scores.
    virtual void build_scores(Step& step) const;

private:
    Graph build_copy_rows(const PlanKey& key, const MemoryLayout& layout) const;
    Graph build_shift_keys(const PlanKey& key, const MemoryLayout& layout,
                           const BuildOptions& options) const;

    ModelInfo info_;
};

// What every architecture's file starts with; ModelError where something is missing.
ModelInfo read_info(const Hparams& hparams, const Weights& weights);

// The model of the architecture that the file names. UnsupportedError lists those that exist.
std::unique_ptr<Model> make_model(const Weights& weights);
std::vector<std::string> architectures();

}  // namespace plait
