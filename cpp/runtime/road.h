// The one way from a batch to its outputs, over one memory: prepare, split, place, then for each
// piece its plan, its inputs and a run, and at last commit. Knows every memory kind by its
// interface alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"
#include "runtime/engine.h"
#include "runtime/outputs.h"
#include "runtime/pool_embeddings.h"
#include "runtime/storage.h"

namespace plait {

struct RoadOptions {
    GraphKind kind = GraphKind::decode;
    StepKind step = StepKind::decode;    // encode: of an encoder-decoder
    BatchLimits limits;
    SplitPolicy split;
    bool causal = true;
    bool flash = true;
    bool embeddings = false;             // hand out hidden states too
    Pooling pooling = Pooling::none;     // other than none: one embedding a sequence, no logits
};

class Road {
public:
    Road(const ModelInfo& info, std::unique_ptr<Memory> memory, Engine& engine, const RoadOptions& options);

    // All or nothing: on any exception the memory is as before the call.
    Outputs run(const BatchView& batch, StopSignal* stop);

    Memory& memory() { return *memory_; }
    const Memory& memory() const { return *memory_; }
    const Storage& storage() const { return storage_; }

    // Carries out row movements that an edit asked for.
    void move_rows(std::span<const RowMove> moves);
    // Carries out rotations that are still pending.
    void apply_shifts();
    // The key of the largest step.
    PlanKey largest_key() const;

private:
    PlanKey key_for(const Piece& piece) const;
    void refresh(const Plan& plan, const Piece& piece, size_t index);
    void refresh_attention(const Plan& plan, uint8_t group, size_t index);
    void run_piece(const Piece& piece, size_t index, Outputs& outputs, StopSignal* stop);
    void flush_moves(uint8_t group, uint32_t n, GraphKind kind);
    void restore_batch_order(Outputs& outputs);
    OutputKind output_kind() const;
    bool pooled() const { return options_.pooling != Pooling::none; }

    const ModelInfo& info_;
    std::unique_ptr<Memory> memory_;
    Engine& engine_;
    RoadOptions options_;
    Storage storage_;
    PreparedBatch prepared_;
    Split split_;
    EmbeddingPool embedding_pool_;
    std::vector<float> hidden_;    // of one piece, when pooling
    std::vector<KeyShift> shifts_;
};

}  // namespace plait
